"""What may be written below `notify`, and where a fault of it is told."""

from pathlib import Path

import pytest

from relay.policy.faults import PolicyError
from relay.policy.source import inspected_policy
from tests.unit.policy.examples import SMALL
from tests.unit.policy.reading import parse


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
