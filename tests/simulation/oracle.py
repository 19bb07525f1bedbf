"""The judge of a story: the six promises (docs/guarantees.md) hold, and mail that may go, goes.

It knows what clients were told and what upstreams saw, and nothing of the relay's internals.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from relay.clock import SECOND_NS
from relay.policy.lane import LimitSettings
from tests.simulation.client import Copy, asked_for
from tests.simulation.manners import Manners, late_in_failover, late_in_fair_weather
from tests.simulation.past import Past, Regime, in_s, key_of, key_of_sender
from tests.simulation.script import Crash, Feel, Send, SetClock
from tests.simulation.upstream import FAILING, Ledger, Mood, Seen, Taken

LIVENESS = "mail that may go, goes"
HOUR_NS = 3_600 * SECOND_NS
CONNECTIONS = 2
"""The connections that the policy allows to every upstream."""
MOST_DAMAGED = 2
"""The most messages that may have octets in one damaged place."""
PAUSING_NS = 10 * SECOND_NS
"""After `relay pause`, a transaction that was granted before may still begin for this long."""
REPORTS_LATE_NS = 200 * SECOND_NS
"""The most by which reports may be late, counted from when they were queued, if only crashes disturb."""
LOOK_NS = 60 * SECOND_NS
"""A waiting message's sender is warned at most this long after `warn_after`."""
COUNTED = {
    "messages": ("mail", "dot", "counted"),
    "recipients": ("rcpt", "dot"),
    "bytes": ("mail", "dot"),
    "connections": ("connect",),
}
"""For each unit: the instants at which an upstream may count."""
WHY = {
    "bad": (b"5.1.1", b"550 5.1.1"),
    "junk": (b"5.6.0", b"554 5.6.0"),
    "never": (b"5.4.7", b"451 4.7.1"),
}
"""For each kind of recipient: the status and the reply that a report states."""
ASKED = {"failed": "FAILURE", "delayed": "DELAY", "relayed": "SUCCESS"}
_REASON = re.compile(
    rb"^Final-Recipient: rfc822; ?(\S+)\r\nAction: failed\r\nStatus: (\S+)\r\n"
    rb"(?:.+\r\n)*?Diagnostic-Code: smtp; (.*)$",
    re.MULTILINE,
)
_ORCPT = re.compile(rb"^Original-Recipient: rfc822; ?(\S+)\r\nFinal-Recipient: rfc822; ?(\S+)", re.MULTILINE)
_MESSAGE_ID = re.compile(rb"^Message-ID: <(\S+)>", re.MULTILINE)
_FRONT = re.compile(rb"Received: [^\r\n]+\r\n(?:[ \t][^\r\n]*\r\n)*")


class Broken(AssertionError):  # noqa: N818 - a promise, not a program, is at fault
    """A promise was broken. `promise` names it: a shortened story must break the same one."""

    def __init__(self, promise: str, words: str) -> None:
        super().__init__(f"{promise}: {words}")
        self.promise = promise


def judge(past: Past) -> None:
    """Check every promise. Raises Broken."""
    for name, ledger in past.ledgers.items():
        for regime in past.regimes[name]:
            for limit in regime.limits:
                _never_over(name, ledger, regime, limit)
    _taken_whole(past)
    _never_lost(past)
    _sent_once(past)
    _told_right(past)
    _obeyed(past)
    if late := late_in_fair_weather(past) or late_in_failover(past):
        raise Broken(LIVENESS, late)
    if all(isinstance(event, Send) for event in past.script.events):
        _few_connections(past)
    if past.world.reports_per_hour:
        _reports_paced(past, past.world.reports_per_hour)
    for promise, words in Manners(past).broken():
        raise Broken(promise, words)


# No limit is exceeded.


def _never_over(name: str, ledger: Ledger, regime: Regime, limit: LimitSettings) -> None:
    for what in COUNTED[limit.unit]:
        keyed: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for seen in ledger.seen:
            if seen.what == what and regime.since_ns <= seen.true_ns <= regime.until_ns:
                keyed[_key_of(seen, limit)].append((seen.true_ns, _weight(seen, limit)))
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
            words = f"{name} saw {used} {limit.unit} of at most {limit.count} in the window to {in_s(at_ns)}"
            raise Broken("never over", f"{words}, {key}")


def _weight(seen: Seen, limit: LimitSettings) -> int:
    if limit.unit == "bytes":
        return seen.size_bytes
    return seen.recipients if limit.unit == "recipients" and seen.what == "dot" else 1


def _key_of(seen: Seen, limit: LimitSettings) -> str:
    if limit.for_each != "recipient_domain":
        return key_of_sender(seen.sender, limit)
    if seen.what == "rcpt":
        return seen.recipient.rpartition("@")[2]
    # The upstream does not see the key at this instant: a key of its own never exceeds a limit.
    return f"{seen.what} at {seen.true_ns} {id(seen)}"


# Content is unchanged.


def _taken_whole(past: Past) -> None:
    copies = {copy.key: copy for copy in past.copies}
    for taken in past.passed.messages:
        copy = copies.get(key_of(taken.content))
        if copy is None or not copy.is_sent:
            raise Broken(
                "bytes unchanged", f"nobody sent what {taken.upstream} took at {in_s(taken.true_ns)}"
            )
        sender = past.world.sent_by(copy.sender)
        if not _is_whole(copy, taken.content, sender):
            raise Broken("bytes unchanged", f"{copy.key} was changed: {taken.content[:300]!r}")
        if taken.sender != sender:
            raise Broken("bytes unchanged", f"{copy.key} was sent by {taken.sender}")
        if not set(taken.recipients) <= set(copy.recipients):
            raise Broken("bytes unchanged", f"{copy.key} went to {taken.recipients}")


def _is_whole(copy: Copy, content: bytes, sender: str) -> bool:
    front = _FRONT.match(content)
    if front is None:
        return False
    rest = content[front.end() :]
    if sender == copy.sender:
        return rest == copy.content
    head, _, body = copy.content.partition(b"\r\n\r\n")
    new_head, _, new_body = rest.partition(b"\r\n\r\n")
    author = f"Ann <{copy.sender}>"
    fields = [
        f"From: Ann <{sender}>".encode(),
        f"X-Original-From: {author}".encode(),
        f"Reply-To: {author}".encode(),
        *(line for line in head.split(b"\r\n") if not line.startswith(b"From:")),
    ]
    return body == new_body and sorted(fields) == sorted(new_head.split(b"\r\n"))


# No message is lost, and the upstream is given no reason to cut off the account.


def _never_lost(past: Past) -> None:
    missing: list[Copy] = []
    for copy in past.copies:
        if copy.refused:
            raise Broken("taken in", f"{copy.key} was refused: {copy.refused}")
        if copy.is_accepted:
            ended = [_has_ended_well(past, copy, each) for each in copy.recipients]
            missing += [] if all(ended) else [copy]
    _no_more_than_was_told(past, missing)


def _has_ended_well(past: Past, copy: Copy, recipient: str) -> bool:
    """Return whether it was relayed or reported, or no report is owed. Raises Broken for a false report."""
    failed, relayed = past.passed.told_of(copy, recipient, "failed"), past.passed.taken_of(copy, recipient)
    if failed and not relayed:
        _may_be_returned(past, copy, recipient, failed[0])
    elif failed and not _was_bounced_unseen(past, copy, relayed):
        raise Broken("never cut off by us", f"{copy.key} to {recipient} was returned and relayed")
    asked, orders = copy.asks(recipient), past.orders
    is_owed = can_be_told(copy) and (not asked or "FAILURE" in asked)
    if failed or relayed or (fails(recipient) and not is_owed):
        return True
    if copy.queue_id in orders.deleted or copy.queue_id in orders.unsure:
        return True
    # If an operator bounced it and no report is owed, it has ended well.
    return copy.queue_id in orders.bounced and not is_owed


def _no_more_than_was_told(past: Past, missing: Sequence[Copy]) -> None:
    """Raise Broken for missing messages, unless they were damaged and the damage was reported."""
    told = [each.partition(":")[0] for each in past.set_aside or ()]
    unnamed = [copy for copy in missing if not any(copy.queue_id in name for name in told)]
    if len(unnamed) > len(told):
        words = "nobody was told of damage to it" if past.set_aside is not None else "it is nowhere"
        which = f"{unnamed[0].key} ({unnamed[0].queue_id})"
        raise Broken("never lost", f"{which}: {words}, and nobody was told that it failed")
    if len(missing) > MOST_DAMAGED:
        raise Broken("other messages go on", f"one damage took {[copy.key for copy in missing]}")


def _may_be_returned(past: Past, copy: Copy, recipient: str, report: Taken) -> None:
    if recipient.startswith(("bad", "junk")) or past.orders.may_have_bounced(copy.queue_id):
        return
    if past.world.lifetime_ns and (copy.sender.startswith("alien") or not recipient.startswith("ok")):
        age_ns = report.true_ns - copy.begun_ns - _rested_ns(past, copy.begun_ns, report.true_ns)
        if age_ns >= past.world.lifetime_ns - _set_on_ns(past):
            return
        raise Broken("never cut off by us", f"{copy.key} to {recipient} expired after {in_s(age_ns)}")
    raise Broken("never cut off by us", f"{copy.key} to {recipient} was returned")


def _set_on_ns(past: Past) -> int:
    """Return the most by which clocks were set forward: a reboot adds it to an age."""
    if not any(isinstance(event, Crash) and event.kind == "power" for event in past.script.events):
        return 0
    steps = [event for event in past.script.events if isinstance(event, SetClock) and event.how == "step"]
    return sum(event.seconds for event in steps) * SECOND_NS


def _rested_ns(past: Past, since_ns: int, until_ns: int) -> int:
    """Return how long upstreams had to be left alone: this time does not count as age."""
    rested_ns, from_ns = 0, since_ns
    for begun_ns, asked_ns in sorted(each for ledger in past.ledgers.values() for each in ledger.refusals):
        over_ns = min(asked_ns, until_ns, max(begun_ns, past.calm_since_ns))
        rested_ns += max(0, over_ns - max(begun_ns, from_ns))
        from_ns = max(from_ns, over_ns)
    return rested_ns


def _was_bounced_unseen(past: Past, copy: Copy, relayed: Sequence[Taken]) -> bool:
    """Return whether an operator bounced a message that an upstream took without the relay learning it."""
    was_seen = any(
        each.is_told and not any(each.begun_ns <= blow.at_ns for blow in past.blows) for each in relayed
    )
    return past.orders.may_have_bounced(copy.queue_id) and not was_seen


def fails(recipient: str) -> bool:
    """Return whether the upstream never accepts this recipient."""
    return recipient.startswith(FAILING)


def can_be_told(copy: Copy) -> bool:
    """Return whether an upstream accepts reports to the sender."""
    return bool(copy.sender) and not fails(copy.sender)


# Duplicates come only from the one window.


def _sent_once(past: Past) -> None:
    sent = dict(past.passed.taken)
    for report in past.passed.reports:
        for message_id in _message_ids([report]):
            sent.setdefault((f"report {message_id}", report.recipients[0]), []).append(report)
    repeated: dict[int, set[str]] = defaultdict(set)
    for (key, recipient), times in sent.items():
        for before, after in pairwise(times):
            excuses = _excuses(past, before, after)
            if before.is_told and len(excuses) == 1:
                repeated[excuses[0]].add(key)
            if before.is_told and not excuses:
                raise Broken(
                    "duplicates only in the window",
                    f"{key} to {recipient} went at {in_s(before.true_ns)} by {before.host}"
                    f" and at {in_s(after.true_ns)} by {after.host}",
                )

    # After damage, every message that ended in the damaged group comes again.
    most = 2 * CONNECTIONS * past.world.relays * len(past.ledgers)
    for at_ns, keys in repeated.items():
        if len(keys) > most and past.set_aside is None:
            raise Broken("duplicates only in the window", f"the end at {in_s(at_ns)} repeats {sorted(keys)}")


def _excuses(past: Past, before: Taken, after: Taken) -> list[int]:
    """Return the blows after which a relay may not know, or not have settled, the first transaction."""
    # A message of a dead process may be taken after one of its successor.
    since_ns = min(before.begun_ns, after.begun_ns)
    return [
        blow.at_ns
        for blow in past.blows
        if since_ns <= blow.at_ns <= after.true_ns
        and blow.relay in ("", (after if blow.is_late else before).host)
    ]


def _few_connections(past: Past) -> None:
    """Raise Broken if an upstream had more connections at once than the policy allows."""
    for name, ledger in past.ledgers.items():
        # Each side learns of a close by the other a little later.
        sessions = [(since_ns, until_ns - SECOND_NS) for since_ns, until_ns in ledger.sessions]
        for at_ns, _ in sessions:
            at_once = sum(since_ns <= at_ns < until_ns for since_ns, until_ns in sessions)
            if at_once > CONNECTIONS * past.world.relays:
                raise Broken("few connections", f"{name} had {at_once} at {in_s(at_ns)}")


# Reports.


def _told_right(past: Past) -> None:
    """Raise Broken unless each sender gets each owed report once, and no other report."""
    copies = {copy.key: copy for copy in past.copies}
    for (key, recipient, action), reports in past.passed.told.items():
        if key in copies:
            _report_is_right(copies[key], recipient, action, reports)
            if action == "failed" and not past.blows and past.set_aside is None:
                _tells_why(past, copies[key], recipient, reports[0])
    for copy in past.copies:
        for recipient in copy.recipients:
            for taken in past.passed.taken_of(copy, recipient):
                _asked_along(past, copy, recipient, taken)
            if copy.is_accepted and can_be_told(copy) and not past.set_aside:
                _success_is_told(past, copy, recipient)
                _warned_in_time(past, copy, recipient)


def _warned_in_time(past: Past, copy: Copy, recipient: str) -> None:
    who, warn_after_ns = f"{copy.key} to {recipient}", past.world.warn_after_ns
    warnings, relayed = past.passed.told_of(copy, recipient, "delayed"), past.passed.taken_of(copy, recipient)
    early_ns = _set_on_ns(past)
    if any(not 0 < warn_after_ns <= each.true_ns - copy.begun_ns + early_ns for each in warnings):
        raise Broken("warned", f"its sender was told too early that {who} is late")
    if len(_message_ids(warnings)) > 1:
        raise Broken("warned", f"its sender was told twice that {who} is late")
    asked = copy.asks(recipient)
    if warnings or not warn_after_ns or (asked and "DELAY" not in asked):
        return
    if recipient.startswith("never"):
        raise Broken("warned", f"nobody was told that {who} is late")
    waited_ns = relayed[0].begun_ns - copy.accepted_ns if relayed else 0
    latest_ns = warn_after_ns + LOOK_NS + int(past.world.look_s * SECOND_NS)
    if past.world.warns_of_waiting and waited_ns > latest_ns:
        raise Broken("warned", f"nobody was told that {who} waits for {in_s(waited_ns)}")


def _report_is_right(copy: Copy, recipient: str, action: str, reports: Sequence[Taken]) -> None:
    subject = f"{action} of {copy.key} to {recipient}"
    if len(ids := _message_ids(reports)) > 1:
        raise Broken("reported once", f"{subject} is in {sorted(ids)}")
    if recipient not in copy.recipients or any(each.recipients != (copy.sender,) for each in reports):
        raise Broken("reported to its sender", f"{subject}: {reports[0].recipients}")
    asked = copy.asks(recipient)
    if ASKED[action] not in (asked or "FAILURE,DELAY"):
        raise Broken("reported as asked", f"{subject}, which asked for {asked!r}")
    for report in reports:
        originals = {name: orcpt for orcpt, name in _ORCPT.findall(report.content)}
        if asked and originals.get(recipient.encode()) != f"Was-{recipient}".encode():
            raise Broken("reported as asked", f"{subject} lacks ORCPT: {originals}")
        is_full = action == "failed" and copy.ret == "FULL" and copy.content.isascii()
        if is_full and copy.content not in report.content:
            raise Broken("reported as asked", f"{copy.key} asked for RET=FULL")
        if copy.ret != "FULL" and copy.content.partition(b"\r\n\r\n")[2] in report.content:
            raise Broken("reported as asked", f"{copy.key} was returned whole and did not ask for that")


def _message_ids(reports: Sequence[Taken]) -> set[str]:
    return {found[1].decode() for each in reports if (found := _MESSAGE_ID.search(each.content))}


def _tells_why(past: Past, copy: Copy, recipient: str, report: Taken) -> None:
    """Raise Broken unless the report states the upstream's reply."""
    if past.orders.may_have_bounced(copy.queue_id):
        return
    if any(isinstance(each, Feel) and each.mood in (Mood.BLOCKED, Mood.ODD) for each in past.script.events):
        return
    why = {name.decode(): (status, said) for name, status, said in _REASON.findall(report.content)}
    status, said = why.get(recipient, (b"", b""))
    for kind, (true_status, true_said) in WHY.items():
        if recipient.startswith(kind) and not (status == true_status and said.startswith(true_said)):
            raise Broken("reported as it was", f"{copy.key} to {recipient} failed for {status!r}, {said!r}")


def _success_is_told(past: Past, copy: Copy, recipient: str) -> None:
    """Raise Broken unless the relay reports exactly the successes that no upstream reports."""
    relayed = past.passed.taken_of(copy, recipient)
    is_told = bool(past.passed.told_of(copy, recipient, "relayed"))
    by_upstream = [each for each in relayed if each.asked_of(recipient)]
    if is_told and relayed and len(by_upstream) == len(relayed):
        raise Broken("reported once", f"success of {copy.key} to {recipient}: the upstream tells of it")
    is_owed = "SUCCESS" in copy.asks(recipient) and relayed and not by_upstream
    if is_owed and not is_told:
        raise Broken("reported as asked", f"success of {copy.key} to {recipient} was told by nobody")


def _asked_along(past: Past, copy: Copy, recipient: str, taken: Taken) -> None:
    """Raise Broken unless the upstream got the client's DSN parameters, or none where it may get none."""
    may_drop = taken.dsn is None or past.world.rewrite or past.ledgers[taken.upstream].refused_dsn
    wanted = asked_for(copy.asks(recipient), recipient)
    of_mail = ([f"RET={copy.ret}"] if copy.ret else []) + ([f"ENVID=E{copy.key}"] if copy.notify else [])
    for asked, expected in ((taken.asked_of(recipient), wanted.split()), (taken.of_mail, of_mail)):
        if sorted(asked.split()) != sorted(expected) and (asked or not may_drop):
            raise Broken("bytes unchanged", f"{copy.key} to {recipient} asked for {expected}, not {asked!r}")


def _reports_paced(past: Past, most: int) -> None:
    # A report that went twice was not queued again for the second time.
    first_ns: dict[str, int] = {}
    for report in past.passed.reports:
        for message_id in _message_ids([report]):
            first_ns.setdefault(message_id, report.true_ns)
    instants = sorted(first_ns.values())
    for before, after in zip(instants, instants[most:], strict=False):
        if after - before < HOUR_NS - REPORTS_LATE_NS:
            raise Broken("reports an hour", f"more than {most} between {in_s(before)} and {in_s(after)}")


# Operators' orders hold.


def _obeyed(past: Past) -> None:
    """Raise Broken unless the answers given to operators are true."""
    orders = past.orders
    for copy, begun_ns in _begun(past):
        if begun_ns > orders.deleted.get(copy.queue_id, begun_ns):
            raise Broken("operators are obeyed", f"{copy.key} went at {in_s(begun_ns)}, and was deleted")
        for held, since_ns, until_ns in orders.held:
            if held == copy.queue_id and since_ns < begun_ns < until_ns:
                raise Broken("operators are obeyed", f"{copy.key} went at {in_s(begun_ns)}, and was held")
    if not past.world.is_shared and (past.world.relays > 1 or past.world.weights.get("clock")):
        return
    # A stopped process may go on with what was granted before the pause.
    if not any(isinstance(event, SetClock) and event.how == "stop" for event in past.script.events):
        _paused_as_asked(past)


def _begun(past: Past) -> Iterator[tuple[Copy, int]]:
    """Yield each transaction that took an accepted message, with its start."""
    for copy in past.copies:
        for recipient in copy.recipients if copy.queue_id else ():
            for taken in past.passed.taken_of(copy, recipient):
                yield copy, taken.begun_ns


def _paused_as_asked(past: Past) -> None:
    orders = past.orders
    for name, since_ns, paused_until_ns in orders.paused:
        ends = [at_ns for upstream, at_ns in orders.resumed if upstream == name and at_ns >= since_ns]
        ends += [at_ns for upstream, at_ns, _ in orders.paused if upstream == name and at_ns > since_ns]
        until_ns = min([paused_until_ns, *ends])
        for seen in past.ledgers[name].seen:
            if seen.what == "mail" and since_ns + PAUSING_NS < seen.true_ns < until_ns:
                raise Broken(
                    "operators are obeyed", f"{name} saw MAIL at {in_s(seen.true_ns)}, and was paused"
                )
