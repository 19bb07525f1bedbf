"""Verbs and views work on the spool of a stopped relay as on that of a running one."""

import asyncio
from pathlib import Path

import pytest

from relay.clock import SECOND_NS, SystemClock
from relay.control.offline import offline
from relay.control.operations import ABSENT, OK, UNCHANGED, NotDone
from relay.mail.envelope import Envelope, QueueId
from relay.policy.model import Policy
from relay.spool.interface import Settlement
from relay.status.snapshot import QueueState
from tests.unit.sender.in_process_relay import Relay, policy_of

NOBODY = QueueId("0" * 16)


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    retry = "retry: {min: 1h, max: 2h, lifetime: 1d}"
    return policy_of(tmp_path, 25, ", limits: [{recipients: 10, per: 1h}]", retry)


def accepted(policy: Policy, count: int = 1, *, is_claimed: bool = True, due_in_s: int = 0) -> list[QueueId]:
    """Accept messages, claim them as a sender does if `is_claimed`, and defer the first by `due_in_s`."""

    async def accept() -> list[QueueId]:
        relay = Relay(policy)
        ids = [relay.accept() for _ in range(count)]
        if is_claimed:
            await relay.sender.read()
        if due_in_s:
            due_ns = SystemClock().wall_ns() + due_in_s * SECOND_NS
            deferred = Settlement(ids[0], Envelope("", (), 0, "", "", ""), next_attempt_at_ns=due_ns)
            await relay.sender.spool_thread.change(deferred)
        await relay.sender.stop()
        return ids

    return asyncio.run(accept())


def test_a_verb_on_one_message_reads_no_other(policy: Policy) -> None:
    first, second, third = accepted(policy, 3, due_in_s=3600)
    (damaged,) = policy.spool.glob(f"cur/*/{third}")
    damaged.write_bytes(b"not a message")

    # The back-off is known even if a message is read alone.
    for result in (OK, UNCHANGED):
        with offline(policy) as session:
            assert session.act("retry", [first]) == {first: result}
    with offline(policy) as session:
        assert session.act("hold", [first]) == {first: OK}
        assert session.show(second).state is QueueState.WAITING
        assert damaged.exists()

        # A listing reads all messages, and has each once.
        states = [QueueState.HELD, QueueState.WAITING, QueueState.CORRUPT]
        assert [view.state for view in session.queue()] == states
        assert not damaged.exists()


def test_an_unclaimed_message_is_found_and_an_unknown_one_is_absent(policy: Policy) -> None:
    (queue_id,) = accepted(policy, is_claimed=False)
    with offline(policy) as session:
        assert session.act("hold", [queue_id, NOBODY]) == {queue_id: OK, NOBODY: ABSENT}
        with pytest.raises(NotDone, match=ABSENT):
            next(session.content(NOBODY))
