"""`relay top` as a command: what it needs, and what it costs the others."""

import os
from pathlib import Path

import pytest

from relay.cli.top.looking import Looking
from relay.clock import SECOND_NS
from tests.fakes.clock import FakeClock
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import FIRST, a_message, a_snapshot
from tests.unit.cli.control import code_of, relay_up, write_policy


@pytest.fixture
def policy_path(tmp_path: Path) -> Path:
    return write_policy(tmp_path)


def test_top_needs_a_terminal_and_says_what_does_not(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("top", "--policy", str(policy_path)) == os.EX_USAGE
    assert "`relay status` prints to anything" in capsys.readouterr().err


async def test_a_look_knows_the_relay_and_how_long_ago(tmp_path: Path) -> None:
    clock = FakeClock()
    looking = Looking(tmp_path, clock)
    await looking.look()
    await looking.count()
    assert (looking.seen().trouble, looking.seen().snapshot) == (f"no relay runs on {tmp_path}", None)

    operations = FakeOperations([a_message(FIRST)])
    with relay_up(tmp_path, operations):
        await looking.look()
        await looking.count()
        clock.advance(3 * SECOND_NS)
        seen = looking.seen()
        assert (seen.trouble, seen.snapshot, seen.age_ns) == ("", a_snapshot(), 3 * SECOND_NS)
        assert seen.now_ns == a_snapshot().at_ns + 3 * SECOND_NS
        assert seen.breakdown is not None
        assert seen.breakdown.senders[0].reverse_path == "list@example.org"
        operations.raises = RuntimeError("odd")
        await looking.look()
        assert looking.seen().trouble.startswith("the relay says: 500")
    await looking.look()
    assert looking.seen().trouble == f"no relay runs on {tmp_path}"
    assert looking.seen().snapshot == a_snapshot()
    await looking.close()
