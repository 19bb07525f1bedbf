"""A plan of a long queue says what one of every message says, though only its front is foretold one by one.

By rates mail goes in drops where a window lets it go in gulps: they differ by a window at most.
"""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.queue.queued import Queued, origin_of
from relay.status import watch
from relay.status.estimate.plan import Course, NoteKind, Plan
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.clock import FakeClock
from tests.unit.sender.in_process_relay import Relay, policy_of
from tests.unit.status.test_long_queue import name_of

MANY, FEW = 3000, 300
LANES = 'lanes: {bulk: {sender: "bulk@*", share: 25}, default: {share: 75}}'
LIMIT = "{messages: 20, per: 10m}"
WINDOW_NS = 602 * SECOND_NS


def fill(relay: Relay) -> None:
    """Queue up two of bulk mail, then one of other mail, and so on; each fiftieth is to 20 recipients."""
    now_ns = relay.clock.boottime_ns()
    for number in range(MANY):
        is_bulk = number % 3 != 0
        origin = origin_of("bulk@x.example", lane="bulk") if is_bulk else origin_of("a@x.example")
        recipients = 20 if number % 50 == 0 else 1
        queued = Queued(
            name_of(number),
            origin,
            1000 + number,
            now_ns - number,
            recipients,
            domains=(("x.example", recipients),),
        )
        relay.sender.queue.add(queued, now_ns=now_ns)


async def plans(
    folder: Path, monkeypatch: pytest.MonkeyPatch, edit: tuple[str, str], *, is_paused: bool = False
) -> list[Plan]:
    """Return two plans of one edit: of every message, and by the front."""
    policy = policy_of(folder, 9, f", limits: [{LIMIT}]", rest=LANES)
    text = (
        "spool: ./spool\nhostname: relay.test\n"
        'listen: [{address: "127.0.0.1:0", clients: [127.0.0.0/8]}]\n'
        f"upstreams: {{isp: {{host: 127.0.0.1, port: 9, tls: none, connections: 2, limits: [{LIMIT}]}}}}\n"
        f"{LANES}\n"
    )
    assert edit[0] in text
    edited = text.replace(*edit).encode()
    async with Relay(policy, clock=FakeClock()) as relay:
        relay.sender.upstreams.halt()
        fill(relay)
        if is_paused:
            assert await relay.operator.pause("isp", PauseAsked("anna")) == OK
        found = []
        for most in MANY, FEW:
            monkeypatch.setattr(watch, "PLANNED", most)
            plan = await relay.operator.plan(edited, folder / "edited.yaml")
            assert isinstance(plan, Plan), plan
            found.append(plan)
        for queued in list(relay.sender.queue):
            relay.sender.queue.remove(queued.queue_id)
    return found


def assert_like(one: Course, other: Course, at_ns: int) -> None:
    assert (other.messages, other.held_by) == (one.messages, one.held_by) == (MANY, "")
    assert [each.messages for each in other.upstreams] == [each.messages for each in one.upstreams]
    assert sum(other.minutes) == pytest.approx(sum(one.minutes), abs=20)
    assert {lane.name: lane.messages for lane in other.lanes} == {
        lane.name: lane.messages for lane in one.lanes
    }
    instants = [
        (one.drained_at_ns, other.drained_at_ns),
        *(
            (lane.last_at_ns, its.last_at_ns)
            for lane, its in zip(sorted(one.lanes, key=str), sorted(other.lanes, key=str), strict=True)
        ),
    ]
    for exact_ns, by_rates_ns in instants:
        assert exact_ns is not None
        assert by_rates_ns is not None
        assert by_rates_ns - at_ns == pytest.approx(exact_ns - at_ns, abs=WINDOW_NS)


@pytest.mark.parametrize(
    "edit",
    [
        ("messages: 20", "messages: 60"),
        ("per: 10m", "per: 1m"),
        ("25}, default: {share: 75", "60}, default: {share: 40"),
        ("connections: 2", "connections: 4"),
    ],
    ids=str,
)
async def test_a_long_queue_is_planned_by_its_front_and_by_rates(
    edit: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, by_rates = await plans(tmp_path, monkeypatch, edit)
    assert_like(exact.old, by_rates.old, exact.at_ns)
    assert_like(exact.new, by_rates.new, exact.at_ns)


async def test_what_meets_a_bound_is_counted_in_all_of_a_long_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = "connections: 2", "connections: 2, max_recipients: 10"
    exact, by_rates = await plans(tmp_path, monkeypatch, edit)
    assert by_rates.notes == exact.notes
    assert [(note.kind, note.messages) for note in exact.notes] == [(NoteKind.IN_PARTS, MANY // 50)]


async def test_of_a_long_queue_that_is_held_nobody_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, by_rates = await plans(tmp_path, monkeypatch, ("messages: 20", "messages: 60"), is_paused=True)
    for one, other in (exact.old, by_rates.old), (exact.new, by_rates.new):
        assert one == other
        assert (other.messages, other.drained_at_ns, other.longest_wait_ns) == (MANY, None, None)
    assert by_rates.waits_longer_than(10**18)
