"""What a story must have kept: the six promises (docs/guarantees.md), and that mail which may go, goes.

It knows what clients were told and what upstreams saw, and nothing of the relay's inside.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from relay.clock import SECOND_NS
from relay.control.operations import ABSENT, BUSY, OK, UNCHANGED, UNREAD, Results
from relay.policy.lane import LimitSettings
from tests.simulation.client import Copy, asked_for
from tests.simulation.keys import key_of_sender, rewritten
from tests.simulation.liveness import Limits, Passed, late_in_failover, late_in_fair_weather
from tests.simulation.manners import Manners
from tests.simulation.script import Feel, Script, Send, SetClock, World
from tests.simulation.upstream import FAILING, Ledger, Mood, Seen, Taken

_KEY = re.compile(rb"^X-Copy: (\S+)", re.MULTILINE)
_FATE = re.compile(rb"^Final-Recipient: rfc822; ?(\S+)\r\nAction: (\w+)", re.MULTILINE | re.IGNORECASE)
_REASON = re.compile(
    rb"^Final-Recipient: rfc822; ?(\S+)\r\nAction: failed\r\nStatus: (\S+)\r\n"
    rb"(?:.+\r\n)*?Diagnostic-Code: smtp; (.*)$",
    re.MULTILINE,
)
_ORCPT = re.compile(rb"^Original-Recipient: rfc822; ?(\S+)\r\nFinal-Recipient: rfc822; ?(\S+)", re.MULTILINE)
_MESSAGE_ID = re.compile(rb"^Message-ID: <(\S+)>", re.MULTILINE)
LIVENESS = "mail that may go, goes"
HOUR_NS = 3_600 * SECOND_NS
CONNECTIONS = 2
"""Of every upstream."""
MOST_DAMAGED = 2
"""So many messages may have octets in one damaged place."""
PAUSING_NS = 10 * SECOND_NS
"""For so long behind `relay pause` a transaction that was granted before may still begin."""
REPORTS_LATE_NS = 200 * SECOND_NS
"""How far apart reports may leave later than they were queued, where only crashes disturb."""
LOOK_NS = 60 * SECOND_NS
"""How long after `warn_after` a sender is told at the latest whose mail waits for so long again."""
_FRONT = re.compile(rb"Received: [^\r\n]+\r\n(?:[ \t][^\r\n]*\r\n)*")


class Broken(AssertionError):  # noqa: N818 - of a promise
    """A promise was broken: `promise` is which, for a shorter story to break the same."""

    def __init__(self, promise: str, words: str) -> None:
        super().__init__(f"{promise}: {words}")
        self.promise = promise


@dataclass(frozen=True)
class Regime:
    """The limits of an upstream, for as long as they were the policy's."""

    since_ns: int
    until_ns: int
    limits: Sequence[LimitSettings]


@dataclass
class Orders:
    """What operators asked for, and were told."""

    paused: list[tuple[str, int, int]] = field(default_factory=list)
    """Upstream, from when, until when."""
    resumed: list[tuple[str, int]] = field(default_factory=list)
    held: list[tuple[str, int, int]] = field(default_factory=list)
    """Message, from when, until when."""
    ended: dict[str, int] = field(default_factory=dict)
    """Messages that were deleted, and since when."""
    bounced: dict[str, int] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    """Messages that may be deleted or bounced: there was no answer, or an error."""
    _holding: dict[str, int] = field(default_factory=dict)

    def asked(self, verb: str, queue_ids: Iterable[str], now_ns: int) -> None:
        for queue_id in queue_ids:
            if verb != "hold" and queue_id in self._holding:
                self.held.append((queue_id, self._holding.pop(queue_id), now_ns))
            if verb in ("bounce", "delete"):
                self.unsure.add(queue_id)

    def answered(self, verb: str, results: Results, now_ns: int) -> None:
        for queue_id, result in results.items():
            is_clear = result in RESULTS
            if verb == "hold" and result == OK:
                self._holding[queue_id] = now_ns
            if verb in ("bounce", "delete") and is_clear:
                self.unsure.discard(queue_id)
            if verb == "bounce" and result == OK:
                self.bounced[queue_id] = now_ns
            if verb == "delete" and result == OK:
                self.ended[queue_id] = now_ns

    def all_is_released(self, now_ns: int) -> None:
        self.held += [(queue_id, since_ns, now_ns) for queue_id, since_ns in self._holding.items()]
        self._holding.clear()
        self.paused = [(name, since_ns, min(until_ns, now_ns)) for name, since_ns, until_ns in self.paused]


RESULTS = (OK, UNCHANGED, ABSENT, BUSY, UNREAD)
"""Those that say whether something was done."""


class Blow(NamedTuple):
    """Something befell a relay, so that it may not know, or not have settled, what it had relayed."""

    at_ns: int
    relay: str = ""
    """Empty: any of them."""
    is_late: bool = False
    """What it began before it sends now, when others may have it."""


@dataclass(frozen=True)
class Past:
    """All that happened."""

    world: World
    script: Script
    limits: Limits
    """At the beginning."""
    copies: Sequence[Copy]
    ledgers: dict[str, Ledger]
    regimes: dict[str, list[Regime]]
    blows: Sequence[Blow]
    orders: Orders
    set_aside: Sequence[str] | None
    """What was told of damage; None where nothing was damaged."""
    calm_since_ns: int
    """From when on nothing disturbs any more."""

    @property
    def crashes_ns(self) -> Sequence[int]:
        return [blow.at_ns for blow in self.blows]


def judge(past: Past) -> None:
    """Raise Broken."""
    for name, ledger in past.ledgers.items():
        for regime in past.regimes[name]:
            for limit in regime.limits:
                _never_over(name, ledger, regime, limit)
    _taken_whole(past)
    _never_lost(past)
    _sent_once(past)
    _told_right(past)
    _obeyed(past)
    seen = passed(past.ledgers, past.copies)
    late = late_in_fair_weather(past.world, past.limits, past.copies, seen, past.script)
    if late := late or late_in_failover(past.world, past.limits, past.copies, seen, past.script):
        raise Broken(LIVENESS, late)
    if all(isinstance(event, Send) for event in past.script.events):
        _few_connections(past)
    if past.world.reports_per_hour:
        _reports_paced(past, past.world.reports_per_hour)
    _mannerly(past)


def _mannerly(past: Past) -> None:
    manners = Manners(past.world, past.script, past.limits, past.crashes_ns, past.calm_since_ns)
    for name, ledger in past.ledgers.items():
        for words in manners.of_upstream(name, ledger, past.copies):
            raise Broken("never cut off by us", words)
    for words in manners.of_order(past.copies, _taken(past)):
        raise Broken("first come, first served", words)
    for words in manners.of_routes({copy.key: copy for copy in past.copies}, _taken(past)):
        raise Broken("by its route", words)


def _never_lost(past: Past) -> None:
    told, taken = _told(past), _taken(past)
    missing: list[str] = []
    for copy in past.copies:
        if copy.refused:
            raise Broken("taken in", f"{copy.key} was refused: {copy.refused}")
        if not copy.is_accepted:
            continue
        for recipient in copy.recipients:
            asked = _notify(copy, recipient)
            failed, passed = told[copy.key, recipient, "failed"], taken[copy.key, recipient]
            if failed and not passed:
                _may_be_returned(past, copy, recipient, failed[0])
            elif failed and not _was_bounced_unseen(past, copy, passed):
                raise Broken("never cut off by us", f"{copy.key} to {recipient} was returned and relayed")
            is_owed = bool(copy.sender) and (not asked or "FAILURE" in asked) and can_be_told(copy)
            if not passed and not failed and (is_owed or not fails(recipient)):
                is_ended = copy.queue_id in past.orders.ended or copy.queue_id in past.orders.unsure
                # One that an operator bounced has nobody to be told where no report is owed.
                if not is_ended and (is_owed or copy.queue_id not in past.orders.bounced):
                    missing.append(f"{copy.key} ({copy.queue_id}) to {recipient}")
    _no_more_than_was_told(past, missing)


def _no_more_than_was_told(past: Past, missing: Sequence[str]) -> None:
    """Raise Broken for what is missing, unless it was damaged, and that was told."""
    told = [each.partition(":")[0] for each in past.set_aside or ()]
    unnamed = [each for each in missing if not any(each.split("(")[1].split(")")[0] in name for name in told)]
    if unnamed and len({each.split()[0] for each in unnamed}) > len(told):
        words = "nobody was told of damage to it" if past.set_aside is not None else "it is nowhere"
        raise Broken("never lost", f"{unnamed[0]}: {words}, and nobody was told that it failed")
    if len({each.split()[0] for each in missing}) > MOST_DAMAGED:
        raise Broken("other messages go on", f"one damage took {missing}")


def _may_be_returned(past: Past, copy: Copy, recipient: str, report: Taken) -> None:
    if recipient.startswith(("bad", "junk")) or copy.queue_id in {*past.orders.bounced, *past.orders.unsure}:
        return
    if past.world.lifetime_ns and (copy.sender.startswith("alien") or not recipient.startswith("ok")):
        age_ns = report.true_ns - copy.begun_ns - _rested_ns(past, copy.begun_ns, report.true_ns)
        if age_ns >= past.world.lifetime_ns - _set_on_ns(past):
            return
        raise Broken("never cut off by us", f"{copy.key} to {recipient} expired after {_s(age_ns)}")
    raise Broken("never cut off by us", f"{copy.key} to {recipient} was returned")


def _set_on_ns(past: Past) -> int:
    """Return by how much clocks were set on at most: over a reboot an age goes by them."""
    steps = [event for event in past.script.events if isinstance(event, SetClock) and event.how == "step"]
    return sum(event.seconds for event in steps) * SECOND_NS


def _rested_ns(past: Past, since_ns: int, until_ns: int) -> int:
    """Return for how long upstreams had to be left alone: that is no age."""
    rested_ns, from_ns = 0, since_ns
    for begun_ns, asked_ns in sorted(each for ledger in past.ledgers.values() for each in ledger.refusals):
        over_ns = min(asked_ns, until_ns, max(begun_ns, past.calm_since_ns))
        rested_ns += max(0, over_ns - max(begun_ns, from_ns))
        from_ns = max(from_ns, over_ns)
    return rested_ns


def _was_bounced_unseen(past: Past, copy: Copy, passed: Sequence[Taken]) -> bool:
    """Whether an operator bounced what an upstream had taken, without the relay's being told of that."""
    was_seen = any(
        each.is_told and not any(each.begun_ns <= crash_ns for crash_ns in past.crashes_ns) for each in passed
    )
    return copy.queue_id in {*past.orders.bounced, *past.orders.unsure} and not was_seen


def _sent_once(past: Past) -> None:
    sent = {(key, recipient): times for (key, recipient), times in _taken(past).items()}
    for taken in _reports(past):
        if found := _MESSAGE_ID.search(taken.content):
            sent.setdefault((f"report {found[1].decode()}", taken.recipients[0]), []).append(taken)
    repeated: dict[int, set[str]] = defaultdict(set)
    for (key, recipient), times in sent.items():
        for before, after in pairwise(times):
            # What a process sent before it died may be taken later than what the next one sent.
            since_ns = min(before.begun_ns, after.begun_ns)
            excuses = [
                blow.at_ns
                for blow in past.blows
                if since_ns <= blow.at_ns <= after.true_ns
                and blow.relay in ("", (after if blow.is_late else before).host)
            ]
            if before.is_told and len(excuses) == 1:
                repeated[excuses[0]].add(key)
            if before.is_told and not excuses:
                raise Broken(
                    "duplicates only in the window",
                    f"{key} to {recipient} went at {_s(before.true_ns)} by {before.host}"
                    f" and at {_s(after.true_ns)} by {after.host}",
                )

    # After damage all that ended in the damaged group comes again.
    most = 2 * CONNECTIONS * past.world.relays * len(past.ledgers)
    for crash_ns, keys in repeated.items():
        if len(keys) > most and past.set_aside is None:
            raise Broken("duplicates only in the window", f"the end at {_s(crash_ns)} repeats {sorted(keys)}")


def _few_connections(past: Past) -> None:
    """Raise Broken if an upstream had more at once than the policy allows, where nothing cut any."""
    for name, ledger in past.ledgers.items():
        # Each side hears a little later of what the other one closed.
        sessions = [(since_ns, until_ns - SECOND_NS) for since_ns, until_ns in ledger.sessions]
        for at_ns, _ in sessions:
            at_once = sum(since_ns <= at_ns < until_ns for since_ns, until_ns in sessions)
            if at_once > CONNECTIONS * past.world.relays:
                raise Broken("few connections", f"{name} had {at_once} at {_s(at_ns)}")


def _told_right(past: Past) -> None:
    """Raise Broken unless each sender hears what is owed once, and nothing else."""
    copies, told, taken = {copy.key: copy for copy in past.copies}, _told(past), _taken(past)
    for (key, recipient, action), reports in told.items():
        if key in copies:
            _report_is_right(copies[key], recipient, action, reports)
            if action == "failed" and not past.crashes_ns and past.set_aside is None:
                _tells_why(past, copies[key], recipient, reports[0])
    for copy in past.copies:
        for recipient in copy.recipients:
            notify, passed = _notify(copy, recipient), taken[copy.key, recipient]
            for each in passed:
                _asked_along(past, copy, recipient, each)
            if not copy.is_accepted or not can_be_told(copy) or past.set_aside:
                continue
            _success_is_told(copy, recipient, passed, is_told=bool(told[copy.key, recipient, "relayed"]))
            is_late = past.world.warn_after_ns and recipient.startswith("never")
            warnings = told[copy.key, recipient, "delayed"]
            if is_late and (not notify or "DELAY" in notify) and not warnings:
                raise Broken("warned", f"nobody was told that {copy.key} to {recipient} is late")
            _warned_in_time(past, copy, recipient, warnings)


def _warned_in_time(past: Past, copy: Copy, recipient: str, warnings: Sequence[Taken]) -> None:
    who, warn_after_ns = f"{copy.key} to {recipient}", past.world.warn_after_ns
    early_ns = _set_on_ns(past)
    if any(not 0 < warn_after_ns <= each.true_ns - copy.begun_ns + early_ns for each in warnings):
        raise Broken("warned", f"its sender was told too early that {who} is late")
    if len({found[1] for each in warnings if (found := _MESSAGE_ID.search(each.content))}) > 1:
        raise Broken("warned", f"its sender was told twice that {who} is late")
    passed, notify = _taken(past)[copy.key, recipient], _notify(copy, recipient)
    waited_ns = passed[0].begun_ns - copy.accepted_ns if passed else 0
    is_owed = past.world.warns_of_waiting and (not notify or "DELAY" in notify)
    if is_owed and not warnings and waited_ns > warn_after_ns + LOOK_NS + int(past.world.look_s * SECOND_NS):
        raise Broken("warned", f"nobody was told that {who} waits for {_s(waited_ns)}")


def _report_is_right(copy: Copy, recipient: str, action: str, reports: Sequence[Taken]) -> None:
    subject, notify = f"{action} of {copy.key} to {recipient}", _notify(copy, recipient)
    ids = {found[1] for report in reports if (found := _MESSAGE_ID.search(report.content))}
    if len(ids) > 1:
        raise Broken("reported once", f"{subject} is in {sorted(ids)}")
    if recipient not in copy.recipients or any(each.recipients != (copy.sender,) for each in reports):
        raise Broken("reported to its sender", f"{subject}: {reports[0].recipients}")
    if ASKED[action] not in (notify or "FAILURE,DELAY"):
        raise Broken("reported as asked", f"{subject}, which asked for {notify!r}")
    for report in reports:
        _returns_as_asked(copy, recipient, action, report)


def _tells_why(past: Past, copy: Copy, recipient: str, report: Taken) -> None:
    """Raise Broken unless a report says what the upstream said."""
    if copy.queue_id in {*past.orders.bounced, *past.orders.unsure}:
        return
    if any(isinstance(each, Feel) and each.mood in (Mood.BLOCKED, Mood.ODD) for each in past.script.events):
        return
    why = {name.decode(): (status, said) for name, status, said in _REASON.findall(report.content)}
    kind = next((each for each in WHY if recipient.startswith(each)), "")
    status, said = why.get(recipient, (b"", b""))
    if kind and not (status == WHY[kind][0] and said.startswith(WHY[kind][1])):
        raise Broken("reported as it was", f"{copy.key} to {recipient} failed for {status!r}, {said!r}")


WHY = {
    "bad": (b"5.1.1", b"550 5.1.1"),
    "junk": (b"5.6.0", b"554 5.6.0"),
    "never": (b"5.4.7", b"451 4.7.1"),
}
ASKED = {"failed": "FAILURE", "delayed": "DELAY", "relayed": "SUCCESS"}


def _returns_as_asked(copy: Copy, recipient: str, action: str, report: Taken) -> None:
    originals = {name: orcpt for orcpt, name in _ORCPT.findall(report.content)}
    if _notify(copy, recipient) and originals.get(recipient.encode()) != f"was-{recipient}".encode():
        raise Broken("reported as asked", f"{action} of {copy.key} to {recipient} lacks ORCPT: {originals}")
    is_full = action == "failed" and copy.ret == "FULL" and copy.content.isascii()
    if is_full and copy.content not in report.content:
        raise Broken("reported as asked", f"{copy.key} asked for RET=FULL")
    if copy.ret != "FULL" and copy.content.partition(b"\r\n\r\n")[2] in report.content:
        raise Broken("reported as asked", f"{copy.key} was returned whole and did not ask for that")


def _success_is_told(copy: Copy, recipient: str, passed: Sequence[Taken], *, is_told: bool) -> None:
    """Raise Broken unless the relay tells of a success just what no upstream tells."""
    by_upstream = [each for each in passed if _asked_of(each, recipient)]
    if is_told and passed and len(by_upstream) == len(passed):
        raise Broken("reported once", f"success of {copy.key} to {recipient}: the upstream tells of it")
    is_owed = "SUCCESS" in _notify(copy, recipient) and passed and not by_upstream
    if is_owed and not is_told:
        raise Broken("reported as asked", f"success of {copy.key} to {recipient} was told by nobody")


def _asked_along(past: Past, copy: Copy, recipient: str, taken: Taken) -> None:
    """Raise Broken unless the upstream is asked for what the client asked for, or for nothing."""
    may_drop = taken.dsn is None or past.world.rewrite or past.ledgers[taken.upstream].refused_dsn
    wanted = asked_for(_notify(copy, recipient), recipient)
    of_mail = ([f"RET={copy.ret}"] if copy.ret else []) + ([f"ENVID=E{copy.key}"] if copy.notify else [])
    for asked, expected in ((_asked_of(taken, recipient), wanted.split()), (taken.of_mail, of_mail)):
        if sorted(asked.split()) != sorted(expected) and (asked or not may_drop):
            raise Broken("bytes unchanged", f"{copy.key} to {recipient} asked for {expected}, not {asked!r}")


def _notify(copy: Copy, recipient: str) -> str:
    return copy.notify[copy.recipients.index(recipient)] if copy.notify else ""


def _asked_of(taken: Taken, recipient: str) -> str:
    return taken.dsn[taken.recipients.index(recipient)] if taken.dsn else ""


def _obeyed(past: Past) -> None:
    """Raise Broken unless what operators were told is so."""
    orders, ids = past.orders, {copy.key: copy.queue_id for copy in past.copies}
    for (key, _), times in _taken(past).items():
        for taken in times:
            queue_id = ids.get(key, "")
            if queue_id and taken.begun_ns > orders.ended.get(queue_id, taken.begun_ns):
                raise Broken("operators are obeyed", f"{key} went at {_s(taken.begun_ns)}, and was deleted")
            for held, since_ns, until_ns in orders.held:
                if held == queue_id and since_ns < taken.begun_ns < until_ns:
                    raise Broken("operators are obeyed", f"{key} went at {_s(taken.begun_ns)}, and was held")
    if not past.world.is_shared and (past.world.relays > 1 or past.world.weights.get("clock")):
        return
    # A process that is stopped may go on with what it was granted before.
    if not any(isinstance(event, SetClock) and event.how == "stop" for event in past.script.events):
        _paused_as_asked(past)


def _paused_as_asked(past: Past) -> None:
    orders = past.orders
    for name, since_ns, paused_until_ns in orders.paused:
        ends = [at_ns for upstream, at_ns in orders.resumed if upstream == name and at_ns >= since_ns]
        ends += [at_ns for upstream, at_ns, _ in orders.paused if upstream == name and at_ns > since_ns]
        until_ns = min([paused_until_ns, *ends])
        for seen in past.ledgers[name].seen:
            if seen.what == "mail" and since_ns + PAUSING_NS < seen.true_ns < until_ns:
                raise Broken("operators are obeyed", f"{name} saw MAIL at {_s(seen.true_ns)}, and was paused")


def _reports_paced(past: Past, most: int) -> None:
    # Of one that went twice the second one was not queued anew.
    first: dict[bytes, int] = {}
    for taken in _reports(past):
        if found := _MESSAGE_ID.search(taken.content):
            first.setdefault(found[1], taken.true_ns)
    events = sorted(first.values())
    for before, after in zip(events, events[most:], strict=False):
        if after - before < HOUR_NS - REPORTS_LATE_NS:
            raise Broken("reports an hour", f"more than {most} between {_s(before)} and {_s(after)}")


def fails(recipient: str) -> bool:
    """Whether it is never relayed."""
    return recipient.startswith(FAILING)


def can_be_told(copy: Copy) -> bool:
    """Whether an upstream takes reports to the sender."""
    return bool(copy.sender) and not fails(copy.sender)


def _taken_whole(past: Past) -> None:
    contents = {copy.key: copy for copy in past.copies}
    for taken in _all_taken(past.ledgers):
        if _is_report(taken):
            continue
        found = _KEY.search(taken.content)
        copy = contents.get(found[1].decode()) if found else None
        if copy is None or not copy.is_sent:
            raise Broken("bytes unchanged", f"nobody sent what {taken.upstream} took at {_s(taken.true_ns)}")
        if not _is_whole(copy, taken.content, past.world.rewrite):
            raise Broken("bytes unchanged", f"{copy.key} was changed: {taken.content[:300]!r}")
        if taken.sender != rewritten(copy.sender, past.world.rewrite):
            raise Broken("bytes unchanged", f"{copy.key} was sent by {taken.sender}")
        if not set(taken.recipients) <= set(copy.recipients):
            raise Broken("bytes unchanged", f"{copy.key} went to {taken.recipients}")


def _is_whole(copy: Copy, content: bytes, rewrite: str) -> bool:
    if not rewrite:
        trace = content.removesuffix(copy.content)
        return bool(_FRONT.fullmatch(trace)) and trace != content
    head, _, body = copy.content.partition(b"\r\n\r\n")
    front = _FRONT.match(content)
    if front is None:
        return False
    new_head, _, new_body = content[front.end() :].partition(b"\r\n\r\n")
    author = f"Ann <{copy.sender}>"
    fields = [
        f"From: Ann <{rewritten(copy.sender, rewrite)}>".encode(),
        f"X-Original-From: {author}".encode(),
        f"Reply-To: {author}".encode(),
        *(line for line in head.split(b"\r\n") if not line.startswith(b"From:")),
    ]
    return body == new_body and sorted(fields) == sorted(new_head.split(b"\r\n"))


def _never_over(name: str, ledger: Ledger, regime: Regime, limit: LimitSettings) -> None:
    for instants in _instants(ledger, limit):
        keyed: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for seen, weight in instants:
            if regime.since_ns <= seen.true_ns <= regime.until_ns:
                keyed[_key_of(seen, limit)].append((seen.true_ns, weight))
        for key, events in keyed.items():
            _no_window_over(name, limit, key, sorted(events))


def _no_window_over(name: str, limit: LimitSettings, key: str, events: list[tuple[int, int]]) -> None:
    first, used = 0, 0
    for at_ns, weight in events:
        used += weight
        while events[first][0] <= at_ns - limit.per_ns:
            used -= events[first][1]
            first += 1
        if used > limit.count:
            words = f"{name} saw {used} {limit.unit} of at most {limit.count} in the window to {_s(at_ns)}"
            raise Broken("never over", f"{words}, {key}")


def _instants(ledger: Ledger, limit: LimitSettings) -> Iterable[list[tuple[Seen, int]]]:
    """Yield, for each way in which an upstream may count, what it counted."""
    one: Callable[[Seen], int] = lambda _: 1  # noqa: E731 - a table of three
    ways: dict[str, dict[str, Callable[[Seen], int]]] = {
        "messages": {"mail": one, "dot": one, "counted": one},
        "recipients": {"rcpt": one, "dot": lambda seen: seen.recipients},
        "bytes": {"mail": lambda seen: seen.size_bytes, "dot": lambda seen: seen.size_bytes},
        "connections": {"connect": one},
    }
    for what, weight in ways[limit.unit].items():
        yield [(seen, weight(seen)) for seen in ledger.seen if seen.what == what]


def _key_of(seen: Seen, limit: LimitSettings) -> str:
    if limit.for_each != "recipient_domain":
        return key_of_sender(seen.sender, limit)
    if seen.what == "rcpt":
        return seen.recipient.rpartition("@")[2]
    # Not told at this instant: a key each, so that nothing is over.
    return f"{seen.what} at {seen.true_ns} {id(seen)}"


def _all_taken(ledgers: Mapping[str, Ledger]) -> list[Taken]:
    taken = [each for ledger in ledgers.values() for each in ledger.taken]
    return sorted(taken, key=lambda each: each.true_ns)


_Times = dict[tuple[str, str], list[Taken]]
_Reports = dict[tuple[str, str, str], list[Taken]]


def _taken(past: Past) -> _Times:
    return _taken_by_copy(past.ledgers)


def passed(ledgers: Mapping[str, Ledger], copies: Sequence[Copy]) -> Passed:
    """Return what upstreams took so far."""
    return Passed(_taken_by_copy(ledgers), _told_of(ledgers, copies))


def _taken_by_copy(ledgers: Mapping[str, Ledger]) -> _Times:
    """Return by copy and recipient each time that an upstream took it; reports left out."""
    times: _Times = defaultdict(list)
    for taken in _all_taken(ledgers):
        if _is_report(taken):
            continue
        if found := _KEY.search(taken.content):
            for recipient in taken.recipients:
                times[found[1].decode(), recipient].append(taken)
    return times


def _reports(past: Past) -> list[Taken]:
    return [taken for taken in _all_taken(past.ledgers) if _is_report(taken)]


def _told(past: Past) -> "_Reports":
    return _told_of(past.ledgers, past.copies)


def _told_of(ledgers: Mapping[str, Ledger], copies: Sequence[Copy]) -> "_Reports":
    """Return by copy, recipient and action (`failed`, `delayed`, `relayed`) the reports of it.

    A report lacks the original's header where that was unreadable: then it is of the copy that was accepted.
    """
    accepted = {name: copy.key for copy in copies if copy.is_accepted for name in copy.recipients}
    told: _Reports = defaultdict(list)
    for taken in filter(_is_report, _all_taken(ledgers)):
        found = _KEY.search(taken.content)
        for recipient, action in _FATE.findall(taken.content):
            key = found[1].decode() if found else accepted.get(recipient.decode(), "")
            told[key, recipient.decode(), action.decode().lower()].append(taken)
    return told


def _is_report(taken: Taken) -> bool:
    return not taken.sender and b"\r\nAuto-Submitted: auto-" in taken.content


def _s(true_ns: int) -> str:
    return f"{true_ns / SECOND_NS:.3f} s"
