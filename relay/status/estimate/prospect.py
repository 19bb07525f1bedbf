"""What a look at a sender comes to under the policy in force, and just behind an edit of it.

Mirrors, in the order of `relay.sender.sender.Sender.apply` and of `Upstreams.apply`, what an edit does to
limits, connections, lanes and pauses; decisions are theirs (`is_mended`, `UpstreamView.edited`,
`with_ceilings`), and nothing is changed.

Of an upstream that this sender does not use (the relay is down, or the edit brings another account)
`RecordedUpstream` says what a start would know.  Where the sender saw no transaction, those of the past
tell how long one takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from relay.mail.envelope import QueueId
from relay.policy.differences import differences
from relay.policy.lane import with_ceilings
from relay.policy.model import RESTART_KEYS, Policy
from relay.queue.queued import Queued
from relay.sender.sender import arrangement_of
from relay.sender.upstreams import UpstreamView, is_mended, is_other_server
from relay.status.estimate.expected import Outlook
from relay.status.estimate.forecast import EditedLook, Look, outlook_of, rest_words
from relay.status.estimate.past import PastTerms, Traffic
from relay.status.estimate.plan import (
    PastCourse,
    Plan,
    Side,
    course,
    foreseen,
    notes,
    over_at_once,
    past_course,
)
from relay.throttle.limit import Limit
from relay.throttle.throttle import View
from relay.verdicts.health import ENDLESS, Health
from relay.verdicts.operator_pause import OperatorPause


class RecordedUpstream(NamedTuple):
    """What a start would know of an upstream: of a relay that is down."""

    health: Health
    because: str = ""
    """Why it rests; empty where it does not."""
    paused_until_ns: int = 0
    """Boottime; without meaning where it does not rest."""
    throttle: View | None = None
    """None where the history cannot be judged."""
    operator: OperatorPause | None = None

    @property
    def is_endless(self) -> bool:
        is_lasting = self.operator is not None and self.operator.is_lasting
        return is_lasting or self.health in ENDLESS

    def carried(self, operator: OperatorPause | None) -> Self:
        """Return what it is behind an edit that brings this account: what the operator says now counts.

        As `KnownUpstream.recall` has it: a word that was said when this account was used before is over.
        """
        if operator is not None:
            return self._replace(operator=operator, because=operator.words, paused_until_ns=operator.until_ns)
        if self.operator is not None:
            return self._replace(operator=None, because="", paused_until_ns=0, health=Health.PROVING)
        return self

    @property
    def rest_words(self) -> str:
        """Return what holds all mail; nothing where a start would send."""
        if self.operator is not None:
            return f"operator: {self.operator.who}"
        kind = "stop" if self.health in ENDLESS else "pause"
        return f"{kind}: {self.because}" if self.because else ""


class ReadUpstream(NamedTuple):
    """What was read of the files of an upstream that mail goes through."""

    old: RecordedUpstream
    """What a start would know of it."""
    new: RecordedUpstream
    """What a start by the edit would know of the one that its mail then goes through."""
    traffic: Traffic
    """What its history tells of the past."""
    fault: str = ""
    """Why that is nothing."""


@dataclass(frozen=True, slots=True)
class Edited:
    """An edit, and what had to be read for a plan of it."""

    policy: Policy
    """As it is written."""
    lane_of: Mapping[QueueId, str]
    """The lane of each message that the edit sorts anew; empty where it sorts none."""
    read: Mapping[str, ReadUpstream]
    """By its name in the policy in force, of each upstream that mail goes through."""


def live_part(old: Policy, new: Policy) -> Policy:
    """Return what of an edit counts without a restart."""
    return new.model_copy(update={key: getattr(old, key) for key in RESTART_KEYS})


def ways(old: Policy, new: Policy) -> list[tuple[str, str]] | str:
    """Return each upstream that mail goes through, with the one through which its mail goes by an edit.

    Or why nobody can tell, in words.
    """
    if not old.routes and not new.routes:
        return [(old.default_upstream, new.default_upstream)]
    if old.routes != new.routes:
        return "it changes the routes, and a plan does not know what mail then goes another way"
    return [(name, name) for name in old.upstreams if name in old.listed_upstreams]


def is_same_account(old: Policy, new: Policy, name: str) -> bool:
    """Return whether an upstream goes on by its history, by the live part of an edit."""
    return name in old.upstreams and old.history_path(name) == new.history_path(name)


@dataclass(frozen=True, slots=True)
class Prospect:
    """Two sides of one instant; the estimates may be made in another thread."""

    edited: Edited
    sides: tuple[tuple[Side, Side], ...]
    """Of each upstream that mail goes through: by the policy in force, and by the edit."""
    is_running: bool
    to_wall_ns: int

    def messages(self) -> list[list[Queued]]:
        """Return copies of those of each look."""
        return [old.look.messages() for old, _ in self.sides]

    def plan(self, whole: Sequence[Sequence[Queued]]) -> Plan:
        """Make the estimates; `whole` is of each side all messages, where its look has not all of them.

        They may be of a moment later than the look: what came and went since hardly changes a plan.
        """
        to_wall_ns, edited = self.to_wall_ns, self.edited
        both = list(zip(whole, self.messages(), strict=True))
        lines = list(zip(self.sides, both, strict=True))
        first = self.sides[0][0]
        return Plan(
            first.look.now_ns + to_wall_ns,
            self.is_running,
            tuple(differences(first.policy, edited.policy)),
            tuple(over for _, new in self.sides for over in over_at_once(new, to_wall_ns)),
            tuple(notes(self.sides, edited.policy, [all_ or its for all_, its in both])),
            course([foreseen(old, its, all_) for (old, _), (all_, its) in lines], to_wall_ns),
            course([foreseen(new, its, all_) for (_, new), (all_, its) in lines], to_wall_ns),
            tuple(self._past(old, new) for old, new in self.sides),
        )

    def _past(self, old: Side, new: Side) -> PastCourse:
        read = self.edited.read[old.upstream]
        past = past_course(read.traffic, (old.upstream, old.terms), new.terms, self.to_wall_ns)
        return replace(past, fault=read.fault)


@dataclass(frozen=True, slots=True)
class Seen:
    """A line of a sender at one instant."""

    policy: Policy
    """In force."""
    look: Look
    """At the line of one upstream."""
    after: str
    """The upstream through which its mail goes by the edit."""
    views: Mapping[str, UpstreamView]
    """Of the upstreams in use, by name; none where the relay is down."""

    @property
    def name(self) -> str:
        return self.look.upstream

    def why_unclear(self, edited: Edited) -> str:
        """Return why nobody can tell where mail of routes would go by an edit; empty where that is clear."""
        policy, name = live_part(self.policy, edited.policy), self.name
        is_known = name in self.views and is_same_account(self.policy, policy, name)
        view, found = self.views.get(name), edited.read[name]
        if view is not None and is_known:
            mended = is_mended(name, self.policy.upstreams[name], policy.upstreams[name])
            return f"{name} is down, and it may mend that" if mended and view.because else ""
        if found.new.rest_words or (view is None and found.old.rest_words):
            return f"{name} would be down at a start, and mail would go elsewhere after a while"
        return ""

    @property
    def now_ns(self) -> int:
        return self.look.now_ns

    def under_policy_in_force(self, edited: Edited) -> Side:
        policy, name = self.policy, self.name
        look = self.look
        if name not in self.views:
            look = look.under(self._recorded(name, policy, edited, None))
        return _side(name, policy, look, {}, with_ceilings(policy.upstreams[name].limits, policy.lanes))

    def under_edit(self, edited: Edited) -> Side:
        policy = live_part(self.policy, edited.policy)
        name, arrangement = self.after, arrangement_of(policy, self.after)
        upstream = policy.upstreams[name]
        view = self.views.get(name)
        limits = with_ceilings(upstream.limits, policy.lanes)
        if view is None or not is_same_account(self.policy, policy, name):
            edit = self._recorded(name, policy, edited, view, is_after=True)
        else:
            before = self.policy.upstreams[name]
            mended = is_mended(name, before, upstream)
            if name != self.name:
                # No mail went through it yet.
                took_ns = view.transaction_ns or self._transaction_ns(edited)
                view = replace(view, transaction_ns=took_ns)
            limited = view.limits.limited_under(limits, upstream.guard_ns, view.transaction_ns)
            seen = view.edited(upstream, is_other_server=is_other_server(before, upstream), is_mended=mended)
            outlook = outlook_of(seen, upstream, _back_off_ns(policy), self.now_ns, limited)
            stop = rest_words(seen) if seen.is_endless else ""
            edit = EditedLook(outlook, stop, trusts_senders=mended)
        is_other_line = name != self.name
        edit = edit._replace(arrangement=arrangement, lane_of=edited.lane_of, is_other_line=is_other_line)
        return _side(name, policy, self.look.under(edit), edited.lane_of, limits)

    def _transaction_ns(self, edited: Edited) -> int:
        """Return how long one takes: by the last ones, or where the sender saw none, by those of the past."""
        seen = self.views.get(self.name)
        return (0 if seen is None else seen.transaction_ns) or edited.read[self.name].traffic.transaction_ns

    def _recorded(
        self,
        name: str,
        policy: Policy,
        edited: Edited,
        before: UpstreamView | None,
        *,
        is_after: bool = False,
    ) -> EditedLook:
        """Return what a start would know; `before` has this upstream's name, and another account."""
        upstream, read = policy.upstreams[name], edited.read[self.name]
        found = read.new if is_after else read.old
        if before is not None:
            found = found.carried(before.operator)
        transaction_ns = self._transaction_ns(edited)
        outlook = Outlook(
            self.now_ns,
            () if found.throttle is None else found.throttle.limited(transaction_ns),
            upstream.connections,
            upstream.max_recipients,
            transaction_ns,
            paused_until_ns=found.paused_until_ns,
            pause=found.rest_words,
            is_proving=found.health is Health.PROVING,
            max_messages=upstream.max_messages,
            idle_ns=upstream.idle_ns,
            back_off_ns=_back_off_ns(policy),
        )
        is_endless = found.is_endless or found.throttle is None
        return EditedLook(outlook, (found.rest_words or "stop: no history") if is_endless else "")


def _side(
    name: str, policy: Policy, look: Look, sorted_anew: Mapping[QueueId, str], limits: Sequence[Limit]
) -> Side:
    upstream = policy.upstreams[name]
    arrangement = arrangement_of(policy, name)
    terms = PastTerms(limits, upstream.guard_ns, upstream.connections, upstream.max_recipients, arrangement)
    return Side(name, policy, look, sorted_anew, limits, terms)


def _back_off_ns(policy: Policy) -> tuple[int, int]:
    return policy.retry.min_ns, policy.retry.max_ns
