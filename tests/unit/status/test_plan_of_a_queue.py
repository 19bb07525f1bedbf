"""What `relay plan` foretold of an edit, against what a whole relay then does by that edit.

The scenes are those of `tests.unit.status.test_eta_of_a_queue`, in virtual time.  At the look the edit is
planned, then it is put in force at the same instant; each message has to leave when the plan says.
The long run goes on with drawn edits: RELAY_CRASH_SEED and RELAY_CRASH_BUDGET (seconds).
"""

import asyncio
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, event, example, given, seed, settings
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.policy.faults import PolicyError
from relay.policy.lane import sorter_of
from relay.policy.source import parse_policy
from relay.policy.written_out import policy_text
from relay.queue.scheduler import Queued, State
from relay.status.estimate.forecast import Expected
from relay.status.estimate.plan import MINUTE_NS, MINUTES, NoteKind, Plan, PlanRemark
from relay.status.estimate.prospect import Edited, Prospect
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.clock import FakeClock
from tests.unit.sender.in_process_relay import Relay, policy_of
from tests.unit.status.test_eta_of_a_queue import (
    LONGEST_WINDOW_NS,
    SENDERS,
    TOLERANCE_NS,
    Mail,
    Play,
    Scene,
    kinds_of_key,
    lanes,
    limits,
    play_out,
    scenes,
)

ROUTES = "routes: [{upstreams: [isp]}]"
DRAWN = 60
DRAWN_AT_LENGTH = 1000
FULL_BUDGET_S = 300.0
"""The default of `make crash`."""


class PlannedPlay(Play):
    """A scene that an edit ends: what was planned, and what happened."""

    def __init__(self, scene: Scene, edit: Scene, folder: Path, clock: FakeClock) -> None:
        super().__init__(scene, folder, clock)
        self.edit = edit
        self.plan: Plan
        self.prospect: Prospect
        self.expected: dict[QueueId, tuple[State, Expected]] = {}
        self.sorts_anew = False

    async def _look(self, relay: Relay) -> None:
        await super()._look(relay)
        text, path = self._text(self._host.port, self.edit), self.folder / "edited.yaml"
        made: list[Prospect] = []
        look = relay.watch.prospect

        def kept(edited: Edited, ways: Sequence[tuple[str, str]]) -> Prospect:
            prospect = look(edited, ways)
            assert isinstance(prospect, Prospect), prospect
            made.append(prospect)
            return prospect

        relay.watch.prospect = kept  # type: ignore[method-assign]  # kept beside the plan, for each message
        plan = await relay.operator.plan(text, path)
        assert isinstance(plan, Plan), plan
        self.plan = plan
        (self.prospect,) = made
        self.expected = {}
        for (_, new), messages in zip(self.prospect.sides, self.prospect.messages(), strict=True):
            expected = new.look.expected(messages)
            for queued, each in zip(messages, expected, strict=True):
                self.expected[queued.queue_id] = queued.state, each
        edited = parse_policy(text, path)
        self.sorts_anew = sorter_of(edited.lanes, ()) != sorter_of(relay.policy.lanes, ())
        await relay.sender.apply(edited)
        relay.watch.policy = edited


def planned(scene: Scene, edit: Scene) -> PlannedPlay:
    with tempfile.TemporaryDirectory() as folder:
        clock = FakeClock()
        play = PlannedPlay(scene, edit, Path(folder), clock)
        play_out(play.run(), clock)
        return play


@st.composite
def edits(draw: st.DrawFn) -> tuple[Scene, Scene]:
    """Return a scene, and the scene that it is by the edited policy."""
    scene = draw(scenes())
    what = draw(
        st.sets(
            st.sampled_from(
                ["limits", "connections", "max_recipients", "lanes", "server", "history", "order"]
            ),
            min_size=1,
            max_size=3,
        )
    )
    edit = scene
    if "limits" in what:
        kept = draw(st.lists(st.sampled_from(scene.limits), unique=True)) if scene.limits else []
        added = draw(st.lists(limits(), max_size=2))
        edit = replace(edit, limits=tuple(dict.fromkeys([*kept, *added])))
    if "connections" in what and max(len(mail.domains) for mail in scene.mails) == 1:
        edit = replace(edit, connections=draw(st.integers(1, 3)))
    if "max_recipients" in what:
        edit = replace(edit, max_recipients=draw(st.sampled_from([1, 2, 100])))
    if "lanes" in what:
        edit = replace(edit, lanes=draw(st.just("") | lanes()))
    keys = ", pipelining: false" if "server" in what else ""
    keys += ", history: ./another" if "history" in what else ""
    if "order" in what:
        scene, edit = replace(scene, other="last"), replace(edit, other="first")
    return scene, replace(edit, upstream=keys)


def is_foretold_exactly(scene: Scene) -> bool:
    """Return whether the estimate promises the instant of each message.

    Over several connections, messages of two lanes that wait for keys may change places: how many are
    taken at once depends on how many connections are open by then.
    """
    keys = kinds_of_key(scene)
    return keys < 2 and not (keys and scene.lanes and scene.connections > 1)


def judge(play: PlannedPlay) -> None:
    """Hold what happened to what was planned."""
    plan, to_wall_ns = play.plan, play.prospect.to_wall_ns
    is_exact = not play.sorts_anew and all(map(is_foretold_exactly, (play.scene, play.edit)))
    event("exact" if is_exact else "nearly")
    going, minutes, last_off_ns = [], Counter[int](), 0
    for queue_id, (state, expected) in play.expected.items():
        if state is State.HELD:
            assert (expected.eta_ns, expected.held_by) == (None, "hold")
            continue
        assert expected.eta_ns is not None, expected
        eta_ns = expected.eta_ns + to_wall_ns
        off_ns = play.relayed_at_ns[queue_id] - eta_ns
        if is_exact:
            assert abs(off_ns) <= TOLERANCE_NS, (queue_id, state, expected, off_ns / SECOND_NS)
        last_off_ns = max(last_off_ns, abs(off_ns))
        minutes[(eta_ns - plan.at_ns) // MINUTE_NS] += 1
        if state in (State.WAITING, State.ACTIVE):
            going.append((play.relayed_at_ns[queue_id], eta_ns))
    relayed_at_ns, drained_at_ns = (
        max((each[index] for each in going), default=plan.at_ns) for index in (0, 1)
    )
    assert plan.new.drained_at_ns == drained_at_ns
    assert abs(relayed_at_ns - drained_at_ns) <= (TOLERANCE_NS if is_exact else 2 * LONGEST_WINDOW_NS)
    assert plan.new.messages == len(going)
    assert plan.new.minutes == tuple(minutes[minute] for minute in range(MINUTES))
    assert sum(lane.messages for lane in plan.new.lanes) == len(going)
    assert max((lane.last_at_ns or 0 for lane in plan.new.lanes), default=0) == (
        drained_at_ns if going else 0
    )
    assert plan.new.longest_wait_ns == (drained_at_ns - plan.at_ns if going else 0)


# A window that holds more than the new N: nothing goes until enough has left it.
LOWERED = (
    Scene(limits=("{messages: 5, per: 9s}",), mails=(Mail(SENDERS[0], ("x.example",)),) * 9),
    Scene(limits=("{messages: 2, per: 9s}",), mails=()),
)
# The account of before stays with what it has sent.
ANOTHER_ACCOUNT = (LOWERED[0], replace(LOWERED[0], upstream=", history: ./another"))


@settings(max_examples=DRAWN, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(LOWERED)
@example(ANOTHER_ACCOUNT)
@given(edits())
def test_what_a_plan_foretells_is_what_the_edit_then_does(drawn: tuple[Scene, Scene]) -> None:
    judge(planned(*drawn))


@pytest.mark.crash
def test_a_thousand_drawn_edits_do_what_was_planned(
    crash_seed: int, crash_budget_s: float, tell: Callable[[str], None]
) -> None:
    """With the default budget or more; with less of it, as many fewer."""
    edits_drawn = max(20, round(DRAWN_AT_LENGTH * min(1.0, crash_budget_s / FULL_BUDGET_S)))
    tell(f"RELAY_CRASH_SEED={crash_seed}: {edits_drawn} edits")

    @seed(crash_seed)
    @settings(
        max_examples=edits_drawn,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[Phase.generate, Phase.shrink],
    )
    @given(edits())
    def plays(drawn: tuple[Scene, Scene]) -> None:
        judge(planned(*drawn))

    plays()


def test_a_limit_that_holds_more_than_its_new_n_is_over_until_it_has_room() -> None:
    play = planned(*LOWERED)

    (over,) = play.plan.over
    assert (over.limit, over.used, over.count, over.key) == ("2 messages per 9s", 5, 2, None)
    first_at_ns = min(play.relayed_at_ns[queue_id] for queue_id in play.expected)
    assert abs(first_at_ns - over.opens_at_ns) <= TOLERANCE_NS


async def test_an_operators_pause_holds_mail_by_either_policy(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 9, ", limits: [{messages: 8, per: 1m}]")
    text = policy_text(policy, {}).replace("messages: 8", "messages: 5").encode()
    async with Relay(policy, clock=FakeClock()) as relay:
        await relay.operator.pause("isp", PauseAsked("anna"))
        relay.accept("b@there.example")
        await relay.until(lambda: len(relay.sender.queue) == 1)

        plan = await relay.operator.plan(text, tmp_path / "edited.yaml")

        assert isinstance(plan, Plan)
        assert [each.words for each in plan.differences] == ["isp: 8 → 5 messages in any 1m"]
        for course in plan.old, plan.new:
            assert course.held_by.startswith("operator: anna, since ")
            assert (course.messages, course.drained_at_ns, course.longest_wait_ns) == (1, None, None)
        assert plan.waits_longer_than(10**18)


async def test_one_plan_is_made_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, plan_of = threading.Event(), threading.Event(), Prospect.plan

    def slowly(prospect: Prospect, whole: Sequence[Sequence[Queued]]) -> Plan:
        begun.set()
        may_end.wait()
        return plan_of(prospect, whole)

    monkeypatch.setattr(Prospect, "plan", slowly)
    policy, path = policy_of(tmp_path, 9), tmp_path / "edited.yaml"
    async with Relay(policy, clock=FakeClock()) as relay:
        first = asyncio.create_task(relay.operator.plan(policy_text(policy, {}).encode(), path))
        await asyncio.to_thread(begun.wait)
        # It would be refused by its first line, were it looked at.
        second = asyncio.create_task(relay.operator.plan(b"no policy", path))
        for _ in range(3):
            await asyncio.sleep(0)
        was_looked_at = second.done()
        may_end.set()

        assert not was_looked_at
        assert isinstance(await first, Plan)
        with pytest.raises(PolicyError):
            await second


async def test_what_an_edit_sorts_anew_is_planned_and_left_as_it_is(tmp_path: Path) -> None:
    lanes = "lanes: {a: {sender: '@here.example'}, default: {}}"
    policy = policy_of(tmp_path, 9, rest=lanes)
    text = policy_text(policy, {}).replace("@here.example", "b@*").encode()
    async with Relay(policy, clock=FakeClock()) as relay:
        relay.sender.upstreams.halt()
        names = [relay.accept("x@there.example", sender=f"{name}@here.example") for name in "ab"]
        await relay.until(lambda: len(relay.sender.queue) == 2)

        plan = await relay.operator.plan(text, tmp_path / "edited.yaml")

        assert isinstance(plan, Plan)
        assert {lane.name: lane.messages for lane in plan.old.lanes} == {"a": 2, "default": 0}
        assert {lane.name: lane.messages for lane in plan.new.lanes} == {"a": 1, "default": 1}
        assert plan.notes == (PlanRemark(NoteKind.OTHER_LANE, "a → default", 1),)
        assert [queued.lane for name in names if (queued := relay.queued(name))] == ["a", "a"]


@pytest.mark.parametrize(("now", "then"), [(ROUTES, ""), ("", ROUTES)])
async def test_of_an_edit_of_routes_a_plan_says_that_nobody_can_tell(
    now: str, then: str, tmp_path: Path
) -> None:
    policy = policy_of(tmp_path, 9, rest=now)
    async with Relay(policy, clock=FakeClock()) as relay:
        edited = policy_text(policy_of(tmp_path, 9, rest=then), {}).encode()

        told = await relay.operator.plan(edited, tmp_path / "edited.yaml")

        assert isinstance(told, str)
        assert told.startswith("it changes the routes")
