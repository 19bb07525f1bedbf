"""What a route's `rewrite` changes in a message.  tests/fuzz/rewriting shows that nothing else changes."""

import pytest

from relay.mail.rewriting import FRONT_BYTES, Rewriting

FIXED, DOMAIN = Rewriting("news@example.com"), Rewriting("@example.com")
TRACE = b"Received: from here by there;\r\n  Mon, 23 Nov 2026 10:00:00 +0000\r\n"
REST = b"Subject: hello\r\nDKIM-Signature: v=1; b=abc\r\n\r\nFrom: not a field\r\n\r\n.body\r\n"


def header(rule: Rewriting, *lines: str, sender: str = "ann@home.lan") -> list[str]:
    """Return the lines that are sent between the trace and the subject."""
    return sent(rule, "".join(f"{line}\r\n" for line in lines).encode(), sender).decode().split("\r\n")[:-1]


def sent(rule: Rewriting, fields: bytes, sender: str = "ann@home.lan") -> bytes:
    content = TRACE + fields + REST
    made = rule.rewritten(sender, content).content(content)
    assert made.startswith(TRACE)
    assert made.endswith(REST)
    return made[len(TRACE) : -len(REST)]


@pytest.mark.parametrize(
    ("rule", "original", "now"),
    [
        *((FIXED, "", ""), (DOMAIN, "", ""), (FIXED, "ann@home.lan", "news@example.com")),
        *((FIXED, "News@EXAMPLE.com", "News@EXAMPLE.com"), (DOMAIN, "ann@home.lan", "ann@example.com")),
        (DOMAIN, "ann@Example.Com", "ann@Example.Com"),
        (DOMAIN, '"a b@c"@home.lan', '"a b@c"@example.com'),
        (DOMAIN, "jürgen@bücher.example", "jürgen@example.com"),
        (DOMAIN, "root@[192.0.2.1]", "root@example.com"),
    ],
)
def test_the_reverse_path_follows_the_rule(rule: Rewriting, original: str, now: str) -> None:
    assert rule.reverse_path(original) == now


@pytest.mark.parametrize(
    ("rule", "given", "expected"),
    [
        (FIXED, ["From: Ann <ann@home.lan>", "Sender: Bob <bob@home.lan>"],
         ["From: Ann <news@example.com>", "X-Original-From: Ann <ann@home.lan>",
          "Reply-To: Ann <ann@home.lan>",
          "Sender: Bob <news@example.com>", "X-Original-Sender: Bob <bob@home.lan>"]),
        (DOMAIN, ["From: Ann <ann@home.lan> (work), bob@office.lan"],
         ["From: Ann <ann@example.com>,", " <bob@example.com>",
          "X-Original-From: Ann <ann@home.lan> (work), bob@office.lan",
          "Reply-To: Ann <ann@home.lan> (work), bob@office.lan"]),
        (FIXED, ["Reply-to: list@home.lan", "From: a@home.lan"],
         ["Reply-to: list@home.lan", "From: <news@example.com>", "X-Original-From: a@home.lan"]),
        (FIXED, ["To: b@c.example"], ["From: <news@example.com>", "To: b@c.example"]),
        (DOMAIN, ["To: b@c.example"], ["From: <ann@example.com>", "To: b@c.example"]),
    ],
)  # fmt: skip
def test_from_and_sender_are_rewritten_and_their_originals_kept(
    rule: Rewriting, given: list[str], expected: list[str]
) -> None:
    assert header(rule, *given) == expected


@pytest.mark.parametrize(
    ("written", "fixed", "domain"),
    [
        ("ann@home.lan", "<news@example.com>", "<ann@example.com>"),
        ('"Smith, Ann" <ann@home.lan>', '"Smith, Ann" <news@example.com>', '"Smith, Ann" <ann@example.com>'),
        ("=?utf-8?q?J=C3=BC?= <j@home.lan>", "=?utf-8?q?J=C3=BC?= <news@example.com>",
         "=?utf-8?q?J=C3=BC?= <j@example.com>"),
        ("Jürgen <j@home.lan>", "Jürgen <news@example.com>", "Jürgen <j@example.com>"),
        ("Ann\r\n\t<ann@home.lan>", "Ann <news@example.com>", "Ann <ann@example.com>"),
        ("ann@home.lan (Ann (at, home))", "<news@example.com>", "<ann@example.com>"),
        ("<@a.lan,@b.lan:ann@home.lan>", "<news@example.com>", "<ann@example.com>"),
        ("Us: A <a@home.lan>, b@home.lan;", "A <news@example.com>", "A <a@example.com>,\r\n <b@example.com>"),
        ("Nobody:;", "<news@example.com>", "<env@example.com>"),
        ("", "<news@example.com>", "<env@example.com>"),
        ("Ann <>", "Ann <news@example.com>", "Ann <env@example.com>"),
        ('"unclosed <ann@home.lan>', "<news@example.com>", "<ann@example.com>"),
        ('"a b"@home.lan', "<news@example.com>", '<"a b"@example.com>'),
    ],
)  # fmt: skip
def test_any_form_of_from_is_rewritten(written: str, fixed: str, domain: str) -> None:
    for rule, expected in ((FIXED, fixed), (DOMAIN, domain)):
        made = "\r\n".join(header(rule, f"From: {written}", "Reply-To: x@y.example", sender="env@home.lan"))
        assert made.startswith(f"From: {expected}\r\nX-Original-From: {written}\r\nReply-To: x@y.example")


def test_a_report_keeps_its_null_sender_and_its_from_is_rewritten() -> None:
    content = TRACE + b"From: MAILER-DAEMON@host.lan\r\n" + REST
    made = DOMAIN.rewritten("", content)

    assert made.reverse_path == ""
    assert header(DOMAIN, "To: b@c.example", sender="") == ["To: b@c.example"]
    assert b"\r\nFrom: <MAILER-DAEMON@example.com>\r\n" in made.content(content)


@pytest.mark.parametrize("rule", [FIXED, DOMAIN])
@pytest.mark.parametrize("line", [b"X-Long: 0123456789\r\n", b"X-Long: " + b"x" * FRONT_BYTES + b"\r\n"])
def test_a_header_longer_than_the_front_gets_no_second_from(rule: Rewriting, line: bytes) -> None:
    """The front ends inside a line, behind a line, and inside a long line."""
    for more in range(3, 3 + len(line) if len(line) < 100 else 4):
        many = line * (FRONT_BYTES // len(line) + 1)
        content = b"X: " + b"y" * more + b"\r\n" + many + b"From: ann@home.lan\r\n\r\nhello\r\n"
        assert rule.rewritten("ann@home.lan", content[:FRONT_BYTES]).content(content) == content


@pytest.mark.parametrize("rule", [FIXED, DOMAIN])
def test_a_header_that_ends_inside_a_line_gets_no_second_from(rule: Rewriting) -> None:
    content = b"Subject: hello\r\nFrom: ann@home.lan"
    assert rule.rewritten("ann@home.lan", content).content(content) == content
