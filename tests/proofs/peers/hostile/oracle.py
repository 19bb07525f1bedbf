"""The promises, asked of what the upstream saw, what the client was told, the queue and the log.

It knows the promises and RFC 5321, and nothing of how the relay keeps them.
"""

import enum
import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.proofs.peers.hostile.ledger import ABOUT_A_MESSAGE, Fate, Ledger, Transaction
from tests.proofs.peers.hostile.words import TAG, Letter

_RECEIVED = re.compile(rb"\AReceived: from .*\r\n(?:[ \t].*\r\n)*")
_FOLD = re.compile(rb"\r\n[ \t]+")
_BLOCK = re.compile(rb"^Final-Recipient: [^\r\n]*\r\n(?:[^\r\n]+\r\n)*", re.MULTILINE)
SECOND_NS = 1_000_000_000
LONGEST_STALL_NS = 500_000_000
"""Above, the upstream cannot say when it saw what it saw."""


class Broken(enum.StrEnum):
    """Which promise."""

    LOST = "lost"
    OVER = "over"
    BOUNCED = "bounced because of us"
    TWICE = "twice without cause"
    CHANGED = "changed content"
    WAITS = "waits because of a stranger's words"
    STUCK = "stuck though the upstream is honest"
    DIED = "ended by itself"
    LEAKED = "a secret in the log"
    FOREIGN = "nobody wrote that"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise."""

    promise: Broken
    text: str
    names: tuple[str, ...] = ()
    """Recipients, for the trace."""
    at_ns: int = 0

    def __str__(self) -> str:
        return f"{self.promise}: {self.text}"


@dataclass(slots=True)
class Evidence:
    """What a run left."""

    ledger: Ledger
    acknowledged: dict[int, set[int]]
    attempted: dict[int, Letter]
    count: int
    period_s: float
    connections: int
    max_transaction_s: float
    kills_ns: list[tuple[int, int]] = field(default_factory=list)
    queued: set[str] = field(default_factory=set)
    """Names of the recipients that are in the queue at the end, to be sent or reported."""
    reports_queued: set[str] = field(default_factory=set)
    """Names that a report in the queue is about."""
    log: Sequence[str] = ()

    def kill_between(self, one_at_ns: int, other_at_ns: int) -> tuple[int, int] | None:
        """Return the first kill that lies between two instants, or that may."""
        spans = (span for span in self.kills_ns if one_at_ns <= span[1] and span[0] <= other_at_ns)
        return next(spans, None)


@dataclass(slots=True)
class Report:
    """What a report says of one recipient."""

    name: str
    diagnostic: str
    one: Transaction


def judge(evidence: Evidence) -> list[Finding]:
    """Return every promise that was broken."""
    taken = [one for one in evidence.ledger.transactions if one.fate is Fate.TAKEN]
    reports = [report for one in taken if not one.sender for report in _reports(one)]
    return [
        *_lost(evidence, taken, reports),
        *_over(evidence),
        *_bounced(evidence, reports),
        *_twice(evidence, taken, reports),
        *_changed(evidence, taken),
        *_waits(evidence),
    ]


def _lost(evidence: Evidence, taken: Iterable[Transaction], reports: Iterable[Report]) -> Iterable[Finding]:
    got = {name for one in taken if one.sender for name in names_of(one)}
    told = {report.name for report in reports}
    for number, indices in evidence.acknowledged.items():
        for index in indices:
            name = f"n{number}k{index}"
            if name not in got | told | evidence.queued | evidence.reports_queued:
                yield Finding(Broken.LOST, f"{name} got no copy and no report, and is not queued", (name,))


def names_of(one: Transaction) -> list[str]:
    """Return the names of whom a transaction was taken for."""
    return ["n{}k{}".format(*found.groups()) for each in one.accepted if (found := TAG.search(each))]


def served(ledger: Ledger) -> set[str]:
    """Return the names of those who got a copy, or of whom a report arrived, rightly or not."""
    taken = [one for one in list(ledger.transactions) if one.fate is Fate.TAKEN]
    copies = {name for one in taken if one.sender for name in names_of(one)}
    return copies | {report.name for one in taken if not one.sender for report in _reports(one)}


def _reports(one: Transaction) -> Iterable[Report]:
    """Return whom a report is about (RFC 3464)."""
    for block in _BLOCK.findall(one.content):
        text = _FOLD.sub(b" ", block).decode("utf-8", "replace")
        fields = dict(line.partition(": ")[::2] for line in text.splitlines())
        if fields.get("Action") == "failed" and (found := TAG.search(fields["Final-Recipient"])):
            name = f"n{found[1]}k{found[2]}"
            yield Report(name, fields.get("Diagnostic-Code", ""), one)


def _over(evidence: Evidence) -> Iterable[Finding]:
    """Count in all windows by each instant at which the upstream may count a transaction."""
    ledger, period_ns = evidence.ledger, round(evidence.period_s * SECOND_NS)
    if any(end - begin > LONGEST_STALL_NS for begin, end in ledger.stalls_ns):
        return
    for text in ledger.over:
        yield Finding(Broken.OVER, text)
    instants = {
        "MAIL": sorted(one.mail_at_ns for one in ledger.transactions),
        "the decision": sorted(
            one.decided_at_ns for one in ledger.transactions if one.fate in (Fate.TAKEN, Fate.REFUSED)
        ),
    }
    for what, at_ns in instants.items():
        for index, each_ns in enumerate(at_ns):
            most = bisect_left(at_ns, each_ns + period_ns) - index
            if most > evidence.count:
                yield Finding(
                    Broken.OVER,
                    f"{most} of {evidence.count} in {evidence.period_s:g} s, by {what}",
                    (),
                    each_ns,
                )
                break


def _bounced(evidence: Evidence, reports: Iterable[Report]) -> Iterable[Finding]:
    """Find reports of recipients whom the upstream did not mean to refuse for good."""
    for report in reports:
        if evidence.ledger.truly_refused(report.name):
            continue
        quoted = evidence.ledger.quoted_in(report.diagnostic)
        why = "our own word" if quoted is None else f"{quoted.cause}, {quoted.manner} at {quoted.phase}"
        yield Finding(
            Broken.BOUNCED,
            f"{report.name} ({why}): {report.diagnostic}",
            (report.name,),
            quoted.at_ns if quoted else 0,
        )


def _copies(
    taken: Iterable[Transaction], reports: Iterable[Report]
) -> dict[tuple[str, bool], list[Transaction]]:
    """Return the transactions that brought each recipient a copy, and its sender a report of it; in order."""
    copies: dict[tuple[str, bool], list[Transaction]] = defaultdict(list)
    for one in taken:
        if one.sender:
            for name in names_of(one):
                copies[name, False].append(one)
    for report in reports:
        copies[report.name, True].append(report.one)
    return {key: sorted(ones, key=lambda each: each.mail_at_ns) for key, ones in copies.items()}


def _twice(evidence: Evidence, taken: Sequence[Transaction], reports: Sequence[Report]) -> Iterable[Finding]:
    longest_ns = round(evidence.max_transaction_s * SECOND_NS / 2)
    by_kill: dict[tuple[int, int], set[int]] = defaultdict(set)
    for (name, is_report), ones in _copies(taken, reports).items():
        for one, other in pairwise(ones):
            if not evidence.ledger.is_told(one, longest_ns):
                continue
            if (kill := evidence.kill_between(one.mail_at_ns, other.mail_at_ns)) is not None:
                by_kill[kill].add(one.number)
                continue
            what = f"the report of {name}" if is_report else name
            where = f"transactions {one.number} (c{one.connection}) and {other.number} (c{other.connection})"
            yield Finding(Broken.TWICE, f"{what}: {where}", (name,), one.mail_at_ns)
    for kill, repeated in by_kill.items():
        if len(repeated) > 2 * evidence.connections:
            yield Finding(Broken.TWICE, f"{len(repeated)} transactions because of one kill", (), kill[0])


def _changed(evidence: Evidence, taken: Iterable[Transaction]) -> Iterable[Finding]:
    senders = {letter.sender for letter in evidence.attempted.values()}
    for one in taken:
        if not one.sender:
            if len(one.accepted) != 1 or one.accepted[0] not in senders:
                yield Finding(Broken.FOREIGN, f"a report to {one.accepted}", (), one.mail_at_ns)
            continue
        numbers = {int(found[1]) for each in one.accepted if (found := TAG.search(each))}
        letters = [evidence.attempted[number] for number in numbers if number in evidence.attempted]
        if len(letters) != 1 or letters[0].sender != one.sender:
            yield Finding(Broken.FOREIGN, f"transaction {one.number} from {one.sender}", (), one.mail_at_ns)
        elif (top := _RECEIVED.match(one.content)) is None or one.content[top.end() :] != letters[0].content:
            yield Finding(Broken.CHANGED, f"letter {letters[0].number}", tuple(names_of(one)), one.mail_at_ns)


def _waits(evidence: Evidence) -> Iterable[Finding]:
    """Find waits whose cause is what was said about somebody else."""
    for line in evidence.log:
        event = _event(line)
        kind = event.get("event", "")
        if kind not in ("upstream_paused", "upstream_stopped", "sender_paused"):
            continue
        reason = str(event.get("reason", ""))
        # Many recipients refused alike are about us for all that anybody can tell.
        is_many = re.match(r"[0-9]+ (?:%|recipients|messages|of the last)", reason) is not None
        quoted = evidence.ledger.quoted_in(reason)
        if quoted is None and kind == "upstream_stopped" and not is_many and "offers" not in reason:
            yield Finding(Broken.WAITS, f"{kind} by itself: {reason}")
        elif quoted is not None and quoted.cause in ABOUT_A_MESSAGE and not is_many:
            yield Finding(Broken.WAITS, f"{kind} ({quoted.cause}): {reason}", quoted.about, quoted.at_ns)


def _event(line: str) -> dict[str, object]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def is_dead(evidence: Evidence, name: str) -> bool:
    """Return whether nobody should ever get that copy: the queue may keep it for as long as it doubts."""
    found = TAG.fullmatch(name)
    assert found is not None
    letter = evidence.attempted[int(found[1])]
    return bool(letter.bad or letter.recipients[int(found[2])].dead)
