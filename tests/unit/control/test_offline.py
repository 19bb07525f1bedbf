"""Verbs on the spool of a relay that is down: as when it runs."""

import asyncio
from pathlib import Path

import pytest

from relay.clock import SECOND_NS, SystemClock
from relay.control.offline import offline
from relay.control.operations import ABSENT, IS_DOWN, OK, UNCHANGED, NotDone
from relay.mail.envelope import Envelope, QueueId
from relay.policy.model import Policy
from relay.spool.interface import Settlement
from tests.unit.sender.in_process_relay import Relay, policy_of

NOBODY = QueueId("0" * 16)


async def a_spool(policy: Policy, count: int) -> list[QueueId]:
    relay = Relay(policy)
    ids = [relay.accept() for _ in range(count)]
    await relay.sender.read()
    await relay.sender.stop()
    return ids


def test_a_back_off_is_known(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 1, rest="retry: {min: 1h, max: 2h, lifetime: 1d}")

    async def a_deferred_message() -> QueueId:
        relay = Relay(policy)
        first = relay.accept()
        await relay.sender.read()
        in_an_hour_ns = SystemClock().wall_ns() + 3600 * SECOND_NS
        deferred = Settlement(first, Envelope("", (), 0, "", "", ""), next_attempt_at_ns=in_an_hour_ns)
        await relay.sender.spool_thread.change(deferred)
        await relay.sender.stop()
        return first

    first = asyncio.run(a_deferred_message())
    for result in (OK, UNCHANGED):
        with offline(policy) as session:
            assert session.act("retry", [first]) == {first: result}


def test_what_is_not_claimed_yet_is_found_and_what_is_nowhere_is_absent(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 1)

    async def an_accepted_message() -> QueueId:
        relay = Relay(policy)
        accepted = relay.accept()
        await relay.sender.stop()
        return accepted

    accepted = asyncio.run(an_accepted_message())
    with offline(policy) as session:
        assert session.act("hold", [accepted, NOBODY]) == {accepted: OK, NOBODY: ABSENT}
        assert session.act("first", [accepted]) == {accepted: IS_DOWN}
        with pytest.raises(NotDone, match=ABSENT):
            next(session.content(NOBODY))
