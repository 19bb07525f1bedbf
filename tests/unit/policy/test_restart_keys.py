"""Which edits need a restart."""

import pytest

from relay.policy.loosening import changes_needing_restart
from relay.policy.model import Policy
from relay.policy.written_out import written_key
from tests.unit.policy.examples import SMALL
from tests.unit.policy.reading import parse


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        (SMALL, []),
        (SMALL + "# a comment\n", []),
        (SMALL.replace("messages: 8", "messages: 9"), []),
        (SMALL + "  two: {host: b.example.net}\n", []),
        (SMALL + "retry: {min: 1m}\n", []),
        (SMALL.replace("spool: spool", "spool: other"), ["spool"]),
        (SMALL.replace("spool: spool", "spool: {path: spool}"), []),
        (SMALL.replace("spool: spool", "spool: {path: spool, engine: log}"), ["spool"]),
        (SMALL.replace("127.0.0.0/8", "127.0.0.1"), ["listen"]),
        (SMALL + "http: 127.0.0.1:9725\nhostname: mail.example.net\n", ["http", "hostname"]),
        (
            SMALL + "practice: {address: '127.0.0.1:1', password_file: p, limit: {messages: 1, per: 1s}}\n",
            ["practice"],
        ),
    ],
)
def test_a_change_is_live_unless_it_is_of_a_restart_key(edited: str, expected: list[str]) -> None:
    for old, new in ((SMALL, edited), (edited, SMALL)):
        changed = changes_needing_restart(parse(old), parse(new))
        assert [written_key(Policy, key) for key in changed] == expected
