"""Verbs on the spool of a relay that is down: as when it runs, and a named message is read alone."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS, SystemClock
from relay.control.offline import OfflineOperations
from relay.control.operations import ABSENT, IS_DOWN, OK, UNCHANGED
from relay.mail.envelope import Envelope, QueueId
from relay.policy.model import Policy
from relay.spool.interface import Settlement
from relay.status.snapshot import MessageView, QueueState
from tests.unit.sender.in_process_relay import Relay, policy_of

NOBODY = QueueId("0" * 16)


async def a_spool(folder: Path, count: int) -> tuple[Policy, list[QueueId]]:
    policy = policy_of(folder, 1)
    relay = Relay(policy)
    ids = [relay.accept() for _ in range(count)]
    await relay.sender.read()
    await relay.sender.stop()
    return policy, ids


async def test_a_verb_on_one_message_reads_no_other(tmp_path: Path) -> None:
    policy, (first, second, third) = await a_spool(tmp_path, 3)
    (damaged,) = policy.spool.glob(f"cur/*/{third}")
    damaged.write_bytes(b"not a message")
    session = OfflineOperations(policy)

    assert await session.act("hold", [first]) == {first: OK}
    assert isinstance(await session.show(second), MessageView)
    assert damaged.exists()

    # What is asked about all reads all, and has each message once.
    listed = {view.queue_id: view.state for view in await session.queue()}
    assert listed == {first: QueueState.HELD, second: QueueState.WAITING} | {
        name: state for name, state in listed.items() if state is QueueState.CORRUPT
    }
    assert len(listed) == 3
    assert not damaged.exists()
    await session.close()


async def test_a_back_off_is_known_of_a_message_that_is_read_alone(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 1, rest="retry: {min: 1h, max: 2h, lifetime: 1d}")
    relay = Relay(policy)
    first = relay.accept()
    await relay.sender.read()
    in_an_hour_ns = SystemClock().wall_ns() + 3600 * SECOND_NS
    deferred = Settlement(first, Envelope("", (), 0, "", "", ""), next_attempt_at_ns=in_an_hour_ns)
    await relay.sender.spool_thread.change(deferred)
    await relay.sender.stop()

    for result in (OK, UNCHANGED):
        session = OfflineOperations(policy)
        assert await session.act("retry", [first]) == {first: result}
        await session.close()


@pytest.mark.parametrize("verb", ["release", "delete", "bounce"])
async def test_what_a_verb_does_a_later_session_finds(tmp_path: Path, verb: str) -> None:
    policy, (first, second) = await a_spool(tmp_path, 2)
    for each in ("hold", verb):
        session = OfflineOperations(policy)
        assert await session.act(each, [first, first]) == {first: OK}  # type: ignore[arg-type]  # one of the verbs
        await session.close()

    session = OfflineOperations(policy)
    found = {view.queue_id: view for view in await session.queue()}
    await session.close()

    assert found[second].state is QueueState.WAITING
    assert (first in found) is (verb == "release")
    reports = [view for view in found.values() if view.reverse_path == ""]
    assert len(reports) == (verb == "bounce")


async def test_what_is_accepted_and_not_claimed_yet_is_found_and_what_is_nowhere_is_absent(
    tmp_path: Path,
) -> None:
    policy = policy_of(tmp_path, 1)
    relay = Relay(policy)
    accepted = relay.accept()
    await relay.sender.stop()
    session = OfflineOperations(policy)

    assert await session.act("hold", [accepted, NOBODY]) == {accepted: OK, NOBODY: ABSENT}
    assert await session.act("first", [accepted]) == {accepted: IS_DOWN}
    await session.close()
