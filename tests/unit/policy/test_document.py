"""YAML with positions: what scalars mean, and what is refused before it can hurt."""

import pytest

from relay.policy.document import MAX_NODES, Document, Fault, Mark


def only_fault(content: str | bytes) -> Fault:
    (fault,) = Document(content if isinstance(content, bytes) else content.encode()).faults
    return fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("true", True), ("false", False), ("null", None), ("~", None), ("", None), ("0", 0), ("-3", -3)),
        *(("10000", 10000), ("no", "no"), ("Yes", "Yes"), ("on", "on"), ("TRUE", "TRUE")),
        *(("22:22", "22:22"), ("0777", "0777"), ("0o17", "0o17"), ("0x1f", "0x1f"), ("1_000", "1_000")),
        *(("1e3", "1e3"), ("1.5", "1.5"), ("2024-01-01", "2024-01-01"), ('"8"', "8"), ("'true'", "true")),
        ("''", ""),
    ],
)
def test_a_scalar_means_what_yaml_1_2_says_and_no_more(text: str, expected: object) -> None:
    document = Document(f"key: {text}\n".encode())
    assert document.faults == []
    found = document.value
    assert found == {"key": expected}
    assert isinstance(found, dict)
    assert type(found["key"]) is type(expected)


def test_marks_are_those_that_an_editor_shows() -> None:
    document = Document("\ufeff# ü\r\nä: {ö: [x, yy]}\r\nb:\r\n  - c: d\r\n".encode())
    assert document.mark_of(["ä"]) == Mark(2, 4)
    assert document.mark_of(["ä", "ö", 1]) == Mark(2, 12)
    assert document.mark_of(["ä", "ö"], of_key=True) == Mark(2, 5)
    assert document.mark_of(["b", 0, "c"]) == Mark(4, 8)
    assert document.mark_of(["b", 0, "missing"]) == Mark(4, 5)


def test_a_duplicate_key_names_both_places() -> None:
    fault = only_fault("a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert (fault.mark, fault.at) == (Mark(4, 3), ("a", "b"))
    assert "line 2, column 3" in fault.message


@pytest.mark.parametrize(
    ("content", "word"),
    [
        *(
            ("a: *x", "undefined alias"),
            ("a: &x [*x]", "nested deeper"),
            ("a: &x 1\nb: &x 2", "duplicate anchor"),
        ),
        *(("a: !!str 8", "tags"), ("a: !secret hunter2", "tags"), ("!!python/object:os.system [x]", "tags")),
        *(("[a]: 1", "a key must be plain text"), ("a: 1\n--- \nb: 2", "a single document"), (b"", "empty")),
        *(("a: |\n  two\n  lines\n", "control character"), ('a: "\\e[31m"', "control character")),
        *(('a: "\\u202e"', "control character"), ("a: \x07", "U+0007"), (b"a: \x00", "U+0000")),
        *(("a: \x85", "U+0085"), ("a: \u2028", "U+2028")),
        *((b"a: \xff", "not UTF-8"), ("a: b".encode("utf-16"), "not UTF-8")),
        *(
            ("a: [1", "not YAML"),
            ("a: 'x", "not YAML"),
            ("a: b: c", "not YAML"),
            ("%YAML 9.9\n---\na", "not YAML"),
        ),
        *(("a: [x, ::1]", "an IPv6 address needs quotes"), ("[" * 50_000, "nested deeper")),
        *(("a:\n\tb: 1", "a tab"), ("a:\n  b: 1\n  \tc: 1", "a tab")),
    ],
)
def test_what_has_no_place_in_a_policy_is_one_flaw(content: str | bytes, word: str) -> None:
    message = only_fault(content).message
    assert word in message
    assert "hunter2" not in message


def test_a_yaml_bomb_counts_as_what_it_unfolds_to() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
    assert f"more than {MAX_NODES} values" in only_fault(bomb).message
