"""What an edited policy would do to the queue of now, beside what the policy in force will do.  Pure.

Mail goes through one upstream, or through those of routes that the edit leaves as they are: then each has
a look and an estimate of its own, and a message in parts has gone with its last part.

Both sides are the same estimate (`relay.status.estimate.forecast`) of the same messages at the same instant:
one with the limits, lanes and connections of now, one with those just behind the edit.  So whatever
the estimate leaves out (refusals, new mail) is left out on both sides.  Of a long line only what goes first
is estimated one by one; the rest goes by rates (`relay.status.estimate.pace`), its lanes by their weights.

A plan says of each thing once: what differs (`relay.policy.differences`), what would be over at once,
notes on messages that meet a bound, when each lane and the queue have gone, the first hour by the
minute, and what the traffic of the last days would have met (`relay.status.estimate.past`).

`plan_to_json` is the form for scripts; the control socket carries the values themselves.
"""

import enum
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.policy.differences import Difference
from relay.policy.model import Policy
from relay.queue.lanes import DEFAULT_LANE
from relay.queue.queued import Queued, State
from relay.status.estimate.eta import state_of
from relay.status.estimate.expected import Outlook
from relay.status.estimate.forecast import LineEstimate, Look
from relay.status.estimate.past import Met, PastTerms, Traffic
from relay.status.snapshot import as_json
from relay.throttle.limit import Limit, plain_words
from relay.throttle.limit_state import Limited

MINUTE_NS = 60 * SECOND_NS
MINUTES = 60
"""How many the plan tells one by one."""
_GOING = (State.WAITING, State.ACTIVE)
"""The states of mail that waits for nothing but limits, lanes, connections and pauses."""


class NoteKind(enum.StrEnum):
    IN_PARTS = "in parts"
    """Messages with more recipients than a limit ever has room for, or a transaction may name: `most` is
    that bound; each goes in parts."""
    OTHER_LANE = "other lane"
    """Messages that change their lane; `about` says which."""
    OTHER_UPSTREAM = "other upstream"
    """Messages that go through another upstream."""
    TOO_OLD = "too old"
    """Messages as old as the new `retry.lifetime`: the next refusal for now bounces them."""
    LATE = "late"
    """Messages whose sender was not warned yet and is late by the new `retry.warn_after`."""
    TOO_LARGE = "too large"
    """Messages larger than every listener would take by the new `max_size`; these stay queued."""


@dataclass(frozen=True, slots=True)
class PlanRemark:
    """Something that the edit means for messages of the queue."""

    kind: NoteKind
    about: str
    """The limit, the lanes, the upstreams or the key."""
    messages: int
    most: int = 0
    """The bound, where the kind has one."""


@dataclass(frozen=True, slots=True)
class Over:
    """A limit that would hold more than its N at once."""

    limit: str
    """Its label."""
    words: str
    """As people write it."""
    used: int
    """Of the fullest key, where it has keys."""
    count: int
    opens_at_ns: int
    """Wall clock: until then nothing goes, of the fullest key."""
    keys: int = 0
    """How many keys hold more than N; 0 where the limit has none."""
    key: str | None = None
    upstream: str = ""
    """Whose limit it is."""


@dataclass(frozen=True, slots=True)
class UpstreamCourse:
    name: str
    messages: int
    """That wait for it; one in parts counts with each upstream that has one."""
    drained_at_ns: int | None
    """Wall clock; now, where nothing waits; None where nobody can tell."""
    held_by: str
    """What holds all mail, as `estimate.forecast` names it; empty for nothing."""


@dataclass(frozen=True, slots=True)
class LaneCourse:
    name: str
    """Empty where the policy has no lanes."""
    messages: int
    last_at_ns: int | None
    """Wall clock: when the last message that waits will have gone; None where nobody can tell, or none
    waits."""


@dataclass(frozen=True, slots=True)
class Course:
    """What becomes of the queue under one policy.  Mail in a back-off counts in `minutes` only."""

    upstream: str
    """Which all mail goes through; empty with routes through several."""
    held_by: str
    """What holds all mail, as `estimate.forecast` names it; empty for nothing, and with several."""
    messages: int
    drained_at_ns: int | None
    """Wall clock; now, where nothing waits; None where nobody can tell."""
    longest_wait_ns: int | None
    """From now; None where nobody can tell."""
    minutes: tuple[int, ...]
    """Messages that leave in each of the next MINUTES."""
    lanes: tuple[LaneCourse, ...]
    upstreams: tuple[UpstreamCourse, ...] = ()
    """Those through which mail goes, in the order of the policy."""


@dataclass(frozen=True, slots=True)
class PastCourse:
    """What the traffic that one account's history knows would have met."""

    upstream: str
    """Of the policy in force."""
    transactions: int
    """Known one by one."""
    since_at_ns: int | None
    """Wall clock: when the first of them began; None where none is known."""
    until_at_ns: int | None
    merged: int
    """Messages that are known only roughly, and not asked."""
    old: Met
    new: Met
    fault: str = ""
    """Why the history cannot be read; then all else says nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    at_ns: int
    """Wall clock."""
    is_running: bool
    """A relay runs; else it is as if one started now."""
    differences: tuple[Difference, ...]
    over: tuple[Over, ...]
    notes: tuple[PlanRemark, ...]
    old: Course
    new: Course
    past: tuple[PastCourse, ...]

    def waits_longer_than(self, most_ns: int) -> bool:
        """Return whether mail would: of the queue, by estimate, or of the last days.

        Yes, too, where nobody can tell how long.
        """
        longest_ns = self.new.longest_wait_ns
        is_past_longer = any(each.new.longest_ns > most_ns for each in self.past)
        return longest_ns is None or longest_ns > most_ns or is_past_longer


@dataclass(frozen=True, slots=True)
class Side:
    """One policy, and a look at the line of one upstream under it."""

    upstream: str
    policy: Policy
    look: Look
    sorted_anew: Mapping[QueueId, str]
    """The lanes of messages that are not in the one they name."""
    limits: Sequence[Limit]
    """In force at the upstream."""
    terms: PastTerms

    @property
    def outlook(self) -> Outlook:
        return self.look.outlook

    def lane_of(self, queued: Queued) -> str:
        """Return the lane of a message; empty where the policy has none."""
        names = {lane.name for lane in self.terms.arrangement.lanes}
        lane = self.sorted_anew.get(queued.queue_id, queued.lane)
        return lane if lane in names else DEFAULT_LANE if names else ""


class Foreseen(NamedTuple):
    """The estimate of one side."""

    side: Side
    estimate: LineEstimate
    behind: Mapping[str, int]
    """By the lane: the messages that wait behind what is estimated one by one."""

    def going(self) -> Iterator[tuple[Queued, int | None]]:
        for queued, each in zip(self.estimate.messages, self.estimate.expected, strict=True):
            if queued.state in _GOING:
                yield queued, each.eta_ns

    @property
    def behind_ns(self) -> list[int | None]:
        """Return when the last of those behind goes, where there are any."""
        return [self.estimate.drained_ns()] if self.side.look.behind.messages else []

    def by_minute(self) -> Iterator[int]:
        """Yield how many of those behind leave in each of the next minutes."""
        now_ns = self.side.look.now_ns
        gone = [self.estimate.gone_by(now_ns + minute * MINUTE_NS) for minute in range(MINUTES + 1)]
        yield from (after - before for before, after in pairwise(gone))

    def lanes_behind(self) -> dict[str, int | None]:
        """Return when each lane has gone that has messages behind; None where nobody can tell.

        As if messages were alike and went in drops, each lane's by its weight: by when a lane is empty,
        another has given as many, by their weights, or all that it has.
        """
        look, pace = self.side.look, self.estimate.pace
        weights = {lane.name: lane.weight for lane in self.side.terms.arrangement.lanes}
        going = Counter(self.side.lane_of(queued) for queued, _ in self.going())
        loads = going + Counter(self.behind)
        found: dict[str, int | None] = {}
        for name in self.behind:
            turns = loads[name] / weights.get(name, 1)
            gone = sum(min(load, math.ceil(turns * weights.get(lane, 1))) for lane, load in loads.items())
            number = min(max(0, gone - going.total()), look.behind.messages)
            part = look.behind.part(number, max(1, look.behind.messages))
            found[name] = None if pace is None else pace.at_ns(part)
        return found

    def course(self, to_wall_ns: int) -> UpstreamCourse:
        look, etas = self.side.look, [*(eta_ns for _, eta_ns in self.going()), *self.behind_ns]
        drained_at_ns = _wall(_last(etas) if etas else look.now_ns, to_wall_ns)
        held_by = look.stop or self.side.outlook.pause
        messages = len(etas) - len(self.behind_ns) + look.behind.messages
        return UpstreamCourse(self.side.upstream, messages, drained_at_ns, held_by)


def foreseen(side: Side, messages: list[Queued], whole: Sequence[Queued]) -> Foreseen:
    """Estimate one side; takes its time.

    `messages` are copies of those of its look; `whole` is the line where that is longer.
    """
    estimate = side.look.foreseen(messages)
    known = {queued.key for queued in messages} if whole else set()
    waiting = (
        each
        for each in whole
        if each.state is State.WAITING and each.key not in known and each.key not in side.look.leaving
    )
    return Foreseen(side, estimate, Counter(map(side.lane_of, waiting)))


def course(lines: Sequence[Foreseen], to_wall_ns: int) -> Course:
    """Return what becomes of the queue by the estimates of all lines under one policy: one or more."""
    first = lines[0].side
    now_ns = first.look.now_ns
    going: dict[QueueId, tuple[str, int | None]] = {}
    leaving: dict[QueueId, int | None] = {}
    by_lane: dict[str, list[int | None]] = {lane.name: [] for lane in first.terms.arrangement.lanes}
    minutes, counts = Counter[int](), Counter[str]()
    for each in lines:
        for queued, expected in zip(each.estimate.messages, each.estimate.expected, strict=True):
            before_ns = leaving.get(queued.queue_id, expected.eta_ns)
            leaving[queued.queue_id] = _later(before_ns, expected.eta_ns)
        for queued, eta_ns in each.going():
            _, before_ns = going.get(queued.queue_id, ("", eta_ns))
            going[queued.queue_id] = each.side.lane_of(queued), _later(before_ns, eta_ns)
        for lane, eta_ns in each.lanes_behind().items():
            by_lane.setdefault(lane, []).append(eta_ns)
        minutes.update(dict(enumerate(each.by_minute())))
        counts.update(each.behind)
    behind_ns = [at_ns for each in lines for at_ns in each.behind_ns]
    last_ns = _last([*(eta_ns for _, eta_ns in going.values()), *behind_ns])
    minutes.update((eta_ns - now_ns) // MINUTE_NS for eta_ns in leaving.values() if eta_ns is not None)
    counts.update(lane for lane, _ in going.values())
    for lane, eta_ns in going.values():
        by_lane.setdefault(lane, []).append(eta_ns)
    lanes = [LaneCourse(name, counts[name], _wall(_last(etas), to_wall_ns)) for name, etas in by_lane.items()]
    upstreams = tuple(each.course(to_wall_ns) for each in lines)
    only = upstreams[0] if len(upstreams) == 1 else None
    is_any = going or behind_ns
    return Course(
        "" if only is None else only.name,
        "" if only is None else only.held_by,
        len(going) + sum(each.side.look.behind.messages for each in lines),
        _wall(last_ns if is_any else now_ns, to_wall_ns),
        (None if last_ns is None else max(0, last_ns - now_ns)) if is_any else 0,
        tuple(minutes[minute] for minute in range(MINUTES)),
        tuple(lanes),
        upstreams,
    )


def over_at_once(side: Side, to_wall_ns: int) -> list[Over]:
    words = {limit.label: plain_words(limit) for limit in side.limits}
    found = []
    for limited in side.outlook.limits:
        usage = state_of(limited, side.look.now_ns).usage(side.look.now_ns)
        if usage.used <= usage.count:
            continue
        # The key of a ceiling is its lane, which its words name.
        keys, key = (0, None) if limited.only is not None else (_keys_over(limited), usage.key)
        opens_at_ns = usage.opens_at_ns + to_wall_ns
        its_words = words.get(usage.label, usage.label)
        found.append(
            Over(usage.label, its_words, usage.used, usage.count, opens_at_ns, keys, key, side.upstream)
        )
    return found


def notes(
    sides: Sequence[tuple[Side, Side]], edited: Policy, messages: Sequence[Sequence[Queued]]
) -> list[PlanRemark]:
    """Return what meets a bound that is tighter than before, and what changes its lane or its way.

    `messages` are those of each line; `edited` is the whole edit: `sides` have what counts without a restart.
    A message in parts counts with each upstream that has one.
    """
    found: dict[tuple[NoteKind, str, int], PlanRemark] = {}
    for (old, new), its in zip(sides, messages, strict=True):
        for note in _notes_of_line(old, new, edited, its):
            key = note.kind, note.about, note.most
            before = found[key].messages if key in found else 0
            found[key] = replace(note, messages=before + note.messages)
    return list(found.values())


def _notes_of_line(old: Side, new: Side, edited: Policy, messages: Sequence[Queued]) -> list[PlanRemark]:
    found = []
    for bound, about in sorted(_bounds(new).items()):
        is_new = bound < min(_bounds(old), default=bound + 1)
        parts = [queued for queued in messages if queued.recipients_left > bound] if is_new else []
        if parts:
            found.append(PlanRemark(NoteKind.IN_PARTS, about, len(parts), bound))
            break
    lanes = Counter((old.lane_of(queued), new.lane_of(queued)) for queued in messages)
    moves = {(before, after): number for (before, after), number in lanes.items() if before != after}
    # Where one of the two has no lanes at all, no message changes anything but the order.
    if old.policy.lanes and new.policy.lanes:
        found += [
            PlanRemark(NoteKind.OTHER_LANE, f"{before} → {after}", number)
            for (before, after), number in moves.items()
        ]
    ways = old.upstream, new.upstream
    going = sum(queued.state is not State.REPORTING for queued in messages)
    if ways[0] != ways[1] and going:
        found.append(PlanRemark(NoteKind.OTHER_UPSTREAM, f"{ways[0]} → {ways[1]}", going))
    found += _by_age(old, new, messages)
    sizes = [max(listen.max_size for listen in policy.listen) for policy in (old.policy, edited)]
    if large := sum(sizes[1] < queued.size_bytes <= sizes[0] for queued in messages):
        found.append(PlanRemark(NoteKind.TOO_LARGE, "listen.max_size", large, sizes[1]))
    return found


def past_course(traffic: Traffic, old: tuple[str, PastTerms], new: PastTerms, to_wall_ns: int) -> PastCourse:
    """Estimate twice; takes as long as it takes for so many messages."""
    name, old_terms = old
    known = traffic.known
    return PastCourse(
        name,
        len(known),
        known[0].started_at_ns + to_wall_ns if known else None,
        max(each.started_at_ns for each in known) + to_wall_ns if known else None,
        traffic.merged,
        traffic.under(old_terms),
        traffic.under(new),
    )


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Keys are the fields' names: they may be added, never renamed."""
    return {
        **as_json(plan, "differences", "over", "notes", "old", "new", "past"),
        "differences": [{**as_json(each), "words": each.words} for each in plan.differences],
        "over": [as_json(each, "words") for each in plan.over],
        "notes": [as_json(each) for each in plan.notes],
        "old": _course_to_json(plan.old),
        "new": _course_to_json(plan.new),
        "past": [
            {**as_json(each, "old", "new"), "old": as_json(each.old), "new": as_json(each.new)}
            for each in plan.past
        ],
    }


def _course_to_json(of: Course) -> dict[str, Any]:
    lists = {"lanes": of.lanes, "upstreams": of.upstreams}
    return {**as_json(of, *lists), **{key: [as_json(each) for each in its] for key, its in lists.items()}}


def _later(one: int | None, other: int | None) -> int | None:
    """Return the later of two instants; None where nobody can tell one of them."""
    return None if one is None or other is None else max(one, other)


def _last(etas: Sequence[int | None]) -> int | None:
    known = [eta_ns for eta_ns in etas if eta_ns is not None]
    return max(known) if known and len(known) == len(etas) else None


def _wall(at_ns: int | None, to_wall_ns: int) -> int | None:
    return None if at_ns is None else at_ns + to_wall_ns


def _keys_over(limited: Limited) -> int:
    """Return how many keys hold more than N, with what counts for all."""
    shared = sum(weight for _, weight in limited.shared)
    of_key = (sum(weight for _, weight in openings) for openings in limited.of_key.values())
    return sum(shared + weight > limited.count for weight in of_key)


def _bounds(side: Side) -> dict[int, str]:
    """Return how many recipients a transaction may have at most, each with what says so."""
    found = {limit.count: plain_words(limit) for limit in side.limits if limit.unit == "recipients"}
    return {side.terms.max_recipients: "max_recipients", **found}


def _by_age(old: Side, new: Side, messages: Sequence[Queued]) -> list[PlanRemark]:
    ages = [(queued, new.look.age_ns(queued)) for queued in messages]
    found = []
    lifetimes = old.policy.retry.lifetime_ns, new.policy.retry.lifetime_ns
    if too_old := sum(lifetimes[1] <= age_ns < lifetimes[0] for _, age_ns in ages):
        found.append(PlanRemark(NoteKind.TOO_OLD, "retry.lifetime", too_old))
    before_ns, after_ns = old.policy.retry.warn_after_ns, new.policy.retry.warn_after_ns
    if after_ns is not None:
        late = sum(
            after_ns <= new.look.now_ns - queued.arrived_at_ns < (before_ns or 1 << 62)
            for queued in messages
            if not queued.is_warned
            and queued.reverse_path
            and queued.state in (State.WAITING, State.DEFERRED)
        )
        if late:
            found.append(PlanRemark(NoteKind.LATE, "retry.warn_after", late))
    return found
