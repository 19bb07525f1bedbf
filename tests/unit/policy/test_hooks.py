"""What may be written below `notify`, and where a fault of it is told."""

from pathlib import Path

import pytest

from relay.policy.faults import PolicyError
from relay.policy.source import inspected_policy
from tests.unit.policy.examples import SMALL
from tests.unit.policy.reading import only_fault, parse


@pytest.mark.parametrize(
    ("hook", "fault"),
    [
        ("{url: 'http://example.net/x'}", "11 notify[0].url: http is for this host only"),
        ("{url: 'https://u:T0PSECRET@example.net/'}", "11 notify[0].url: expected a URL such as"),
        ("{url: 'https://example.net/T0PSECRET#x'}", "11 notify[0].url: expected a URL such as"),
        ("{url: 'https://example.net:99999/'}", "11 notify[0].url: expected a URL such as"),
        ("{url: 25}", "11 notify[0].url: expected a URL such as"),
        (
            "{url: 'https://a.example', command: [x]}",
            "41 notify[0].command: expected a url or a command, got",
        ),
        ("{events: [bounced]}", "5 notify[0]: expected a url or a command"),
        ("{command: [x], secret_file: s}", "33 notify[0].secret_file: a command gets no signature"),
        ("{command: []}", "15 notify[0].command: expected at least one"),
        ("{command: ['~/x']}", "15 notify[0].command: ~ is not expanded"),
        ("{command: [x], events: [bounce]}", "29 notify[0].events[0]: expected bounced, expired, paused"),
    ],
)
def test_a_fault_of_a_hook_names_its_place(hook: str, fault: str) -> None:
    found = only_fault(f"{SMALL}notify:\n  - {hook}\n")

    column, _, rest = fault.partition(" ")
    assert (found.line, found.column) == (11, int(column))
    assert f"{found.key}: {found.message}".startswith(rest)
    assert "T0PSECRET" not in str(found)


def test_a_url_is_shown_without_its_path() -> None:
    (hook,) = parse(f"{SMALL}notify: [{{url: 'https://example.net:8443/T0PSECRET?k=T0PSECRET'}}]\n").notify

    assert hook.shown == "https://example.net:8443"


@pytest.mark.parametrize(
    ("hook", "fault"),
    [
        ("{url: 'https://a.example', secret_file: none}", "cannot read"),
        ("{url: 'https://a.example', secret_file: open}", "is open to others"),
        ("{url: 'https://a.example', secret_file: bad}", "has no base64 after whsec_"),
        ("{command: [none]}", "cannot read"),
        ("{command: [.]}", "is not a regular file"),
        ("{command: [bad]}", "is no program that we may run"),
    ],
)
def test_a_file_that_a_hook_names_is_looked_at(tmp_path: Path, hook: str, fault: str) -> None:
    for name, mode, text in ("open", 0o644, "secret"), ("bad", 0o600, "whsec_T0P SECRET"):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)

    with pytest.raises(PolicyError) as caught:
        inspected_policy(f"{SMALL}notify: [{hook}]\n".encode(), tmp_path / "policy.yaml")

    (found,) = caught.value.errors
    assert fault in found.message
    assert "T0P" not in str(found)
