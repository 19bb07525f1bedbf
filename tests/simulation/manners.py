"""How upstreams are treated and in what order mail goes, as the pages for administrators promise it.

Each rule yields descriptions of what was broken. A rule judges a span of time only if nothing in it may have
changed the relay's decision or kept it uninformed: an operator, an edit, a crash, the disk, the clock.

Mail takes no longer than the limits do. While the only events are clients that send (`late_in_fair_weather`),
each message ends within the time that the limits take for all mail present. While only an upstream is down
(`late_in_failover`), mail goes by the other one. After all disturbances all mail is gone within the `calm_s`
of its world, which is far longer.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from relay.clock import SECOND_NS
from relay.policy.lane import LimitSettings
from tests.simulation.client import Copy
from tests.simulation.past import Past, in_s, key_of_sender
from tests.simulation.script import NO_NEWS, Crash, Damage, Disturb, Feel, Send, SetClock, World
from tests.simulation.upstream import ALIEN_TIMES, DEFERRED_TIMES, Ledger, Mood

GRACE_NS = SECOND_NS
"""Tolerance for transactions in progress when a reply came, and for replies on their way."""
SHARED_GRACE_NS = 5 * SECOND_NS
"""The same, plus the time until all hosts know of the reply."""
SENDER_RESTS_NS = 15 * 60 * SECOND_NS
RETRY_NS = 7 * SECOND_NS
"""The least `retry.min`."""
DURABLE_NS = 3 * SECOND_NS
"""The time after a reply until its outcome is durable."""
IN_A_ROW = 11
"""This many messages refused alike, including the one that trips the shield, stop an upstream."""
STOP_NS = 3_600 * SECOND_NS
IDLE_NS = 12 * SECOND_NS
"""`idle`, plus the time that a transaction may take to begin after all."""
FAILOVER_S = 40
EVIDENT = 3
"""After this many refusals, with other mail relayed after each, the next refusal returns old mail."""
SEVERAL = 4
"""This many messages may overtake: one for each connection, and one that was ahead."""


class Manners:
    def __init__(self, past: Past) -> None:
        self._past = past
        self._world = world = past.world
        self._calm_ns = past.calm_since_ns
        """From this instant on, operators resume and release whatever is paused or held."""
        events = past.script.events
        self._feels = [event for event in events if isinstance(event, Feel)]
        self._is_fair = all(isinstance(event, Send) for event in events)
        self._grace_ns = SHARED_GRACE_NS if world.is_shared else GRACE_NS
        self._disturbed = [(blow.at_ns, blow.at_ns) for blow in past.blows]
        for event in events:
            # A host without notifications learns the news behind the lock of its next reservation.
            if isinstance(event, Disturb) and event.how == NO_NEWS:
                continue
            if not isinstance(event, Send | Feel | Crash):
                is_step = isinstance(event, SetClock) and "step" in event.how
                lasts_s = event.seconds if isinstance(event, Disturb | SetClock) and not is_step else 0
                self._disturbed.append((_ns(event.at_s), _ns(event.at_s + lasts_s + 5)))
        limits = [limit for each in past.limits.values() for limit in each]
        self._is_keyed = any(limit.for_each or limit.unit in ("bytes", "recipients") for limit in limits)
        """The first message may be overtaken, and a connection may be opened for it in vain."""
        self._has_crashes_only = all(isinstance(event, Send | Feel | Crash) for event in events)
        self._is_clock_set = any(isinstance(event, SetClock | Damage) for event in events)

    def broken(self) -> Iterator[tuple[str, str]]:
        """Yield the broken promises: name and description."""
        for name, ledger in self._past.ledgers.items():
            if self._world.is_shared:
                for words in self._while_refused(name, ledger):
                    yield "never cut off by us", words
            elif not self._is_clock_set and self._world.relays == 1:
                for words in self._of_upstream(name, ledger):
                    yield "never cut off by us", words
        for words in self._of_order():
            yield "first come, first served", words
        for words in self._of_routes():
            yield "by its route", words

    def _is_quiet(self, since_ns: int, until_ns: int) -> bool:
        is_before = until_ns < self._calm_ns
        return is_before and not any(
            begun_ns <= until_ns and since_ns <= over_ns for begun_ns, over_ns in self._disturbed
        )

    def _within(
        self, said_ns: int, until_ns: int, instants: Sequence[int], durable_ns: int = 0
    ) -> Iterator[int]:
        """Yield the instants between the two. A reply survives a crash `durable_ns` or more after it."""
        for at_ns in instants:
            if said_ns + self._grace_ns < at_ns < until_ns - GRACE_NS:
                heard_ns = said_ns + durable_ns if durable_ns and self._has_crashes_only else at_ns
                if at_ns < self._calm_ns and self._is_quiet(said_ns - GRACE_NS, min(at_ns, heard_ns)):
                    yield at_ns

    # Rules for upstreams.

    def _while_refused(self, name: str, ledger: Ledger) -> Iterator[str]:
        mails = [seen.true_ns for seen in ledger.seen if seen.what == "mail"]
        for said_ns, until_ns in ledger.refusals:
            for at_ns in self._within(said_ns, until_ns, mails):
                yield f"{name} refused the account at {in_s(said_ns)}, and saw MAIL at {in_s(at_ns)}"

    def _of_upstream(self, name: str, ledger: Ledger) -> Iterator[str]:
        """Check also the rules that hosts with a shared account do not keep: each host learns by itself."""
        yield from self._while_refused(name, ledger)
        yield from self._one_at_a_time(name, ledger)
        yield from self._stops(name, ledger)
        yield from self._of_aliens(name, ledger)
        yield from self._of_deferrals(name, ledger)
        yield from self._of_connections(name, ledger)

    def _one_at_a_time(self, name: str, ledger: Ledger) -> Iterator[str]:
        """After a pause, one transaction proves the upstream before others follow."""
        for said_ns, until_ns in ledger.refusals:
            proof_ns = min((at_ns for at_ns in ledger.proofs if at_ns > said_ns), default=self._calm_ns)
            since_ns = until_ns - GRACE_NS
            proving = sorted(each for each in ledger.transactions if since_ns < each[0] < proof_ns)
            for begun_ns, _, named in proving[:1]:
                if named > 1 and self._is_quiet(said_ns - GRACE_NS, begun_ns):
                    yield f"{name} was not proven, and was asked for {named} recipients at {in_s(begun_ns)}"
            for (begun_ns, over_ns, _), (next_ns, _, _) in pairwise(proving):
                if next_ns < over_ns and self._is_quiet(said_ns - GRACE_NS, next_ns):
                    yield f"{name} was not proven, and saw MAIL at {in_s(begun_ns)} and at {in_s(next_ns)}"

    def _stops(self, name: str, ledger: Ledger) -> Iterator[str]:
        """If many messages of different senders are refused alike and none is relayed, all mail waits."""
        mails = [seen.true_ns for seen in ledger.seen if seen.what == "mail"]
        row: list[str] = []
        relayed = sorted(each.true_ns for each in ledger.taken)
        for place, (said_ns, sender) in enumerate(ledger.blocks):
            if place and any(ledger.blocks[place - 1][0] < at_ns < said_ns for at_ns in relayed):
                row.clear()
            row += [sender] if sender not in row else []
            if len(row) >= IN_A_ROW:
                for at_ns in self._within(said_ns, said_ns + STOP_NS, mails):
                    if self._is_quiet(0, at_ns):
                        yield f"{name} refused {len(row)} messages alike; MAIL at {in_s(at_ns)}"

    def _of_aliens(self, name: str, ledger: Ledger) -> Iterator[str]:
        """Mail of a refused sender waits, and is returned once old, while other mail goes."""
        for said_ns, sender in ledger.aliens:
            own = [seen.true_ns for seen in ledger.seen if seen.what == "mail" and seen.sender == sender]
            for at_ns in self._within(said_ns, said_ns + SENDER_RESTS_NS, own):
                yield f"{name} refused {sender} at {in_s(said_ns)}, and saw its MAIL at {in_s(at_ns)}"
        if not self._world.lifetime_ns or self._disturbed:
            return
        spans = [(each.begun_ns - GRACE_NS, each.true_ns + GRACE_NS) for each in ledger.taken]
        for sender in sorted({sender for _, sender in ledger.aliens}):
            said = [at_ns for at_ns, whose in ledger.aliens if whose == sender]
            if len(said) <= EVIDENT + 1 or said[EVIDENT] - said[0] <= self._world.lifetime_ns:
                continue
            gaps = list(pairwise(said))[:EVIDENT]
            if all(any(since < begun and over < until for begun, over in spans) for since, until in gaps):
                yield f"{sender} was asked about after {EVIDENT} refusals with others relayed in between"

    def _of_deferrals(self, name: str, ledger: Ledger) -> Iterator[str]:
        sent = Counter(each for copy in self._past.copies if copy.is_sent for each in copy.recipients)
        # Several reports may go to the same sender.
        sent.update(to for each in ledger.taken if not each.sender for to in each.recipients)
        for said_ns, recipient in ledger.deferrals:
            if sent[recipient] > 1:
                continue  # it may be another message's attempt: a client that saw no 250 sends again
            asked = [seen.true_ns for seen in ledger.seen if seen.recipient == recipient]
            for at_ns in self._within(said_ns, said_ns + RETRY_NS, asked, DURABLE_NS):
                yield f"{name} put {recipient} off at {in_s(said_ns)}, and was asked again at {in_s(at_ns)}"

    def _of_connections(self, name: str, ledger: Ledger) -> Iterator[str]:
        for silence in ledger.silences:
            until_ns = silence.until_ns or self._calm_ns
            late_ns = silence.since_ns + silence.most_ns + GRACE_NS
            if until_ns > late_ns and self._is_quiet(silence.since_ns, min(late_ns, self._calm_ns - 1)):
                yield f"{name} was silent from {in_s(silence.since_ns)}, and was left at {in_s(until_ns)}"
        for since_ns, until_ns in () if self._is_keyed else ledger.idle:
            if until_ns - since_ns > IDLE_NS and self._is_quiet(since_ns, until_ns):
                yield f"{name} saw nothing from {in_s(since_ns)} to QUIT at {in_s(until_ns)}"

    # Rules for messages.

    def _of_order(self) -> Iterator[str]:
        """Check the order in fair weather: first come, first served; with lanes by turns and shares."""
        if not self._is_fair or self._is_keyed or len(self._world.upstreams) > 1 or self._world.relays > 1:
            return
        begun: list[tuple[int, Copy]] = []
        for copy in self._past.copies:
            passed = [self._past.passed.taken_of(copy, each) for each in copy.recipients]
            times = [each.begun_ns for some in passed for each in some]
            is_plain = all(each.startswith("ok") for each in copy.recipients) and "alien" not in copy.sender
            if copy.is_accepted and times and is_plain:
                begun.append((min(times), copy))
        begun.sort(key=lambda each: each[0])
        has_lanes = bool(self._world.half_of_all)
        for at_ns, copy in begun:
            for before_ns, other in begun:
                is_behind = copy.accepted_ns + GRACE_NS < other.begun_ns and before_ns + GRACE_NS < at_ns
                if is_behind and (not has_lanes or other.sender == copy.sender):
                    yield f"{other.key} went at {in_s(before_ns)}, before {copy.key} at {in_s(at_ns)}"
            if has_lanes:
                senders = [each.sender for ns, each in begun if copy.accepted_ns + GRACE_NS < ns < at_ns]
                yield from self._of_lanes(copy, senders)

    def _of_lanes(self, copy: Copy, senders: Sequence[str]) -> Iterator[str]:
        """Check one message. `senders`: the senders, in order, of the messages that went while it waited."""
        lane = self._world.half_of_all
        if copy.sender in lane:
            own = sum(sender in lane for sender in senders)
            if len(senders) - own > own + SEVERAL:
                yield f"{len(senders) - own} of other lanes went before {copy.key}, with {own} of its own"
            return
        own = senders.count(copy.sender)
        for sender in set(senders) - {copy.sender, *lane}:
            if senders.count(sender) > own + SEVERAL:
                yield f"{senders.count(sender)} of {sender} went before {copy.key}, with {own} of its sender"

    def _of_routes(self) -> Iterator[str]:
        """Check that a route leaves its first upstream only if that is down, or after `spill_after`."""
        if self._disturbed:
            return
        for copy in self._past.copies if self._world.routes else ():
            for recipient in copy.recipients if copy.accepted_ns else ():
                first, spills_s = self._world.routes[recipient.rpartition("@")[2]]
                for each in self._past.passed.taken_of(copy, recipient):
                    is_spilled = spills_s and each.begun_ns - copy.accepted_ns >= _ns(spills_s)
                    is_down = any(
                        feel.upstream == first and _ns(feel.at_s + FAILOVER_S) <= each.begun_ns
                        for feel in self._feels
                    )
                    if each.upstream != first and not is_spilled and not is_down:
                        yield f"{copy.key} to {recipient} went by {each.upstream} at {in_s(each.begun_ns)}"


def _ns(seconds: float) -> int:
    return int(seconds * SECOND_NS)


# How long mail may take.

TRANSACTION_S = 3.0
"""The longest transaction while the upstream is well: its delays and the network's."""
EACH_S = 1.0
"""The average transaction, with two connections."""
TRACE_BYTES = 400
REPORT_BYTES = 4_000
ALIEN_RESTS_S = (15 + 30 + 60 + 120 + 240 + 6) * 60.0
"""The pauses of a sender that may not send at first, with a minute before each of its tries."""
DOWN_MOODS = (Mood.DOWN, Mood.BUSY, Mood.QUOTA_AT_MAIL, Mood.QUOTA_AT_DOT)
LATEST_FAILOVER_S = 45.0
"""`failover_after`, plus the interval in which it is checked."""


def late_in_fair_weather(past: Past) -> str:
    """Return the message that ended too late while only clients acted, or an empty string."""
    ended_ns, gone_ns = past.passed.ended_ns(), past.passed.gone_ns()
    others_s = [event.at_s for event in past.script.events if not isinstance(event, Send)]
    until_ns = others_s[0] * SECOND_NS if others_s else math.inf
    for copy in past.copies:
        if not copy.is_accepted:
            continue
        due_ns, before_ns = copy.accepted_ns, -1
        while due_ns != before_ns and due_ns < until_ns:
            beside = [
                each
                for each in past.copies
                if each.begun_ns <= due_ns and gone_ns.get(each.key, due_ns) >= copy.accepted_ns
            ]
            span_s = sum(_span_s(past.world, each, beside) for each in past.limits.values())
            if copy.sender.startswith("alien"):
                span_s += ALIEN_RESTS_S
            before_ns, due_ns = due_ns, copy.accepted_ns + int(span_s * SECOND_NS)
        if due_ns < until_ns and ended_ns.get(copy.key, due_ns + 1) > due_ns:
            went = in_s(ended_ns.get(copy.key, -SECOND_NS))
            return f"{copy.key} was to be gone by {in_s(due_ns)}, and went at {went}"
    return ""


def late_in_failover(past: Past) -> str:
    """Return the message that failed over late while its first upstream was down, or an empty string."""
    others = [event for event in past.script.events if not isinstance(event, Send)]
    feel = others[0] if len(others) == 1 else None
    if not isinstance(feel, Feel) or feel.mood not in DOWN_MOODS:
        return ""
    limits = [each for name, each in past.limits.items() if name != feel.upstream]
    spans_s = sum(_span_s(past.world, each, past.copies) for each in limits)
    for copy in past.copies:
        due_s = copy.accepted_ns / SECOND_NS + LATEST_FAILOVER_S + TRANSACTION_S + spans_s
        if copy.accepted_ns < feel.at_s * SECOND_NS or due_s > feel.at_s + feel.seconds:
            continue
        for recipient in copy.recipients:
            first, _ = past.world.routes.get(recipient.rpartition("@")[2], ("", 0))
            times = past.passed.taken_of(copy, recipient)
            is_late = not times or times[0].true_ns > due_s * SECOND_NS
            if first == feel.upstream and recipient.startswith("ok") and is_late:
                return f"{copy.key} was to go past {first} by {due_s:.1f} s"
    return ""


def _span_s(world: World, limits: Sequence[LimitSettings], left: Sequence[Copy]) -> float:
    """Return how long these limits may delay all of `left`, if their windows are full at first."""
    tries = [_tries(copy, world.most_recipients) for copy in left]
    spans_s = 0.0
    for limit in limits:
        weights: dict[str, int] = {}
        for copy, (own, reports) in zip(left, tries, strict=True):
            key = key_of_sender(world.sent_by(copy.sender), limit)
            weights[key] = weights.get(key, 0) + own * _weight(copy, limit)
            weight = REPORT_BYTES if limit.unit == "bytes" else 1
            key = key_of_sender("", limit)
            weights[key] = weights.get(key, 0) + reports * weight
        count = max(1, limit.count * world.ceiling_percent // 100)
        windows = math.ceil(max(weights.values(), default=0) / count)
        spans_s += windows * (limit.per_ns / SECOND_NS + 1 + TRANSACTION_S)
    deferred = max((own - 1 + max(0, reports - 1) for own, reports in tries), default=0)
    transactions = sum(own + reports for own, reports in tries)
    return spans_s + transactions * EACH_S + TRANSACTION_S + deferred * (world.retry_max_s + TRANSACTION_S)


def _tries(copy: Copy, most_recipients: int) -> tuple[int, int]:
    """Return the number of transactions for a message, and the number for its reports."""
    is_deferred = any(each.startswith(("later", "slow", "junk")) for each in copy.recipients)
    own = (1 + DEFERRED_TIMES * is_deferred) * math.ceil(len(copy.recipients) / most_recipients)
    own += ALIEN_TIMES * copy.sender.startswith("alien")
    reports = 1 + DEFERRED_TIMES * copy.sender.startswith("later")
    return own, reports if copy.may_be_reported else 0


def _weight(copy: Copy, limit: LimitSettings) -> int:
    match limit.unit:
        case "recipients":
            return len(copy.recipients)
        case "bytes":
            return len(copy.content) + TRACE_BYTES
        case _:
            return 1
