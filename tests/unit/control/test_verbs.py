"""The operator's verbs: each cell of their table, on filtered messages, and on many messages."""

import errno
from dataclasses import replace
from pathlib import Path

from relay.control.operations import (
    ABSENT,
    BUSY,
    CHANGED,
    FAULT,
    HELD_ALREADY,
    OK,
    ONLY_REPORT_LEFT,
    TABLE,
    UNCHANGED,
    VERBS,
    MessageVerb,
)
from relay.mail.envelope import QueueId
from relay.queue.queued import State
from relay.spool.disk.durable import Disk
from relay.status.filters import Filters
from relay.status.snapshot import QueueState
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.fakes.unsynced import Unsynced
from tests.unit.sender.in_process_relay import Relay, policy_of

COLUMNS = (State.WAITING, State.DEFERRED, State.HELD, State.REPORTING)
CELLS: dict[MessageVerb, tuple[str | None, ...]] = {
    "hold": (None, None, UNCHANGED, ONLY_REPORT_LEFT),
    "release": (UNCHANGED, UNCHANGED, None, ONLY_REPORT_LEFT),
    "retry": (UNCHANGED, None, HELD_ALREADY, ONLY_REPORT_LEFT),
    "bounce": (None, None, None, ONLY_REPORT_LEFT),
    "delete": (None, None, None, None),
}
"""Why the verb does nothing in each state; None where it acts."""


def test_every_verb_does_in_every_state_what_the_operator_was_promised() -> None:
    assert {verb: tuple(map(TABLE[verb].unless.get, COLUMNS)) for verb in VERBS} == CELLS
    shown = {
        verb: [QueueState(s) for s, why in zip(COLUMNS, CELLS[verb], strict=True) if why is None]
        for verb in VERBS
    }
    assert {verb: [*TABLE[verb].changes] for verb in VERBS} == shown


async def a_relay(folder: Path, count: int, disk: Disk | None = None) -> tuple[Relay, list[QueueId]]:
    relay = Relay(policy_of(folder, 1), disk)
    ids = [relay.accept() for _ in range(count)]
    await relay.sender.read()
    return relay, ids


async def test_a_verb_acts_only_on_a_message_that_is_still_in_its_listed_state(tmp_path: Path) -> None:
    relay, ids = await a_relay(tmp_path, 4)
    operator, held = relay.operator, (QueueState.HELD,)
    await operator.act("hold", ids)
    assert [view.queue_id for view in await relay.listed(Filters(states=held))] == ids
    await operator.act("release", ids[:1])
    await operator.act("delete", ids[1:2])
    assert await operator.act("hold", ids[2:3]) == {ids[2]: UNCHANGED}

    results = await operator.act("delete", [*ids, ids[3]], held)
    assert results == dict(zip(ids, (CHANGED, ABSENT, OK, OK), strict=True))
    relay.sender.queue.seize(ids[0])
    assert await operator.act("hold", ids[:1]) == {ids[0]: BUSY}
    await relay.sender.stop()


async def test_a_held_message_is_held_by_the_operator_after_a_restart_too(tmp_path: Path) -> None:
    before, (queue_id,) = await a_relay(tmp_path, 1)
    await before.operator.act("hold", [queue_id])
    listed = await before.listed()
    await before.sender.stop()
    after = Relay(before.policy)
    await after.sender.read()
    assert listed[0].reason == "held by the operator"
    assert [replace(each, age_ns=0) for each in await after.listed()] == [replace(listed[0], age_ns=0)]
    await after.sender.stop()


async def test_a_listing_shows_only_recipients_that_are_left(tmp_path: Path) -> None:
    script = Script(rcpt=turns("250 ok", *["451 4.2.1 later"] * 3))
    async with Smarthost(script) as host:
        policy = policy_of(tmp_path, host.port, rest="retry: {min: 1h, max: 1h, lifetime: 1d}")
        async with Relay(policy) as relay:
            relay.accept("one@x.example", "two@x.example", "three@x.example", "four@y.example")
            await relay.until(lambda: [each.state for each in relay.sender.queue] == [State.DEFERRED])

            (view,) = await relay.listed()
            assert view.recipients == ("two@x.example", "three@x.example", "four@y.example")
            assert await relay.listed(Filters(recipients=("one@x.example",))) == []
            # Memory has the first three recipients; the others are read from the spool.
            (found,) = await relay.listed(Filters(recipients=("four@y.example",)))
            assert found.queue_id == view.queue_id


async def test_an_error_with_one_message_leaves_the_results_of_the_others(tmp_path: Path) -> None:
    fails = dict[str, Exception]()

    def fail(name: str, path: str) -> None:
        if name == "rename" and "/hold/" in path and (error := fails.get(Path(path).name)) is not None:
            raise error

    relay, ids = await a_relay(tmp_path, 4, Unsynced(fail))
    fails[ids[1]] = OSError(errno.EIO, "Input/output error")
    results = await relay.operator.act("hold", ids)
    assert [results[queue_id] == OK for queue_id in ids] == [True, False, True, True]
    assert "Input/output error" in results[ids[1]]

    fails[ids[1]] = ZeroDivisionError("odd")
    assert await relay.operator.act("hold", [ids[1]]) == {ids[1]: FAULT}
    assert "fault in control: ZeroDivisionError: odd" in relay.log.getvalue()
    await relay.sender.stop()
