"""Judges what upstreams saw of mail that was relayed while programs were killed.

The judge knows the promises, and nothing of the relay.  It compares the replies to clients (`Feeder`),
the transactions of upstreams (`Seen`) and the times of the kills.

A second copy of a message needs a reason: a kill after the MAIL of the first copy and before the MAIL of the
second.  Each kill explains at most `UNSETTLED` repeated transactions for each connection.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from tests.system.feeder import SENDER, Letter, letter
from tests.system.witness import Seen

_RECEIVED = re.compile(rb"\AReceived: from .*\r\n\tby [a-z]+\.test .*\r\n(?:[ \t].*\r\n)*")
_REPORTED = re.compile(
    rb"^Final-Recipient: rfc822; ?([a-z]+[0-9]+@list\.test)\r\nAction: ([a-z]+)\r$", re.MULTILINE
)
_FINAL = b"\r\nFinal-Recipient: "
UNSETTLED = 2
"""For each connection: one message in its transaction, and one whose end is not durable yet."""
_NUMBER = re.compile(r"(?:r([0-9]+)\.[0-9]+|told([0-9]+))@(?:[a-z]+\.)?list\.test")


@dataclass(slots=True)
class Kills:
    """The times (boottime) of the kills that can make the relay send a message again."""

    spans_ns: list[tuple[int, int]] = field(default_factory=list)
    """For each kill, the instants just before and just after it."""

    @contextmanager
    def one(self) -> Iterator[None]:
        before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        try:
            yield
        finally:
            self.spans_ns.append((before_ns, time.clock_gettime_ns(time.CLOCK_BOOTTIME)))

    def between(self, one_at_ns: int, other_at_ns: int) -> int | None:
        """Return the index of the first kill that may lie between two instants, or None."""
        for index, (before_ns, after_ns) in enumerate(self.spans_ns):
            if one_at_ns <= after_ns and before_ns <= other_at_ns:
                return index
        return None


@dataclass(slots=True)
class Verdict:
    """What the judge found.  The first four fields must be empty."""

    lost: set[str]
    """Of acknowledged messages, the recipients that got no copy, and the reports that did not arrive."""
    foreign: set[str]
    """Copies to recipients that nobody wrote to, and reports that nobody had to get."""
    corrupt: list[str]
    """Messages that arrived changed, each with what is wrong."""
    unexplained: list[str]
    """Recipients that got another copy, or were tried again after a refusal, without a kill in between."""
    reports: int
    """Transactions of reports that the upstream took."""
    duplicates: int
    """Extra copies, counted for each recipient."""
    repeated: dict[int, set[int]]
    """For each kill, the transactions that were repeated because of it, by their index in the record."""

    @property
    def most_repeated(self) -> int:
        return max(map(len, self.repeated.values()), default=0)

    def assert_good(self, *, connections: int) -> None:
        faults = (self.lost, self.foreign, self.corrupt, self.unexplained)
        assert faults == (set(), set(), [], []), "lost, foreign, corrupt, unexplained"
        assert self.most_repeated <= UNSETTLED * connections, self.repeated


def judge(
    seen: Sequence[Seen],
    tried: Sequence[tuple[str, int]],
    kills: Kills,
    acknowledged: Collection[int],
    attempted: Collection[int],
    *,
    letter: Callable[[int], Letter] = letter,
    unreadable: Kills | None = None,
) -> Verdict:
    """Judge letters by what upstreams saw, and by whom they refused and when (`tried`).

    `unreadable` is when content could not be read: a transaction that reads some then ends without a message,
    and its recipients are tried again.
    """
    relayed = [each for each in seen if each.is_relayed]
    copies: dict[str, list[tuple[int, Seen]]] = defaultdict(list)
    for index, one in sorted(enumerate(relayed), key=lambda each: each[1].mail_at_ns):
        for told in _told(one):
            copies[told].append((index, one))
    written = {told for number in attempted for told in _promised(letter(number))}
    promised = {told for number in acknowledged for told in _promised(letter(number))}
    corrupt = [fault for each in relayed if (fault := _fault(each, letter)) is not None]
    unexplained, repeated = _explain(copies, kills)
    return Verdict(
        lost=promised - set(copies),
        foreign=set(copies) - written,
        corrupt=corrupt,
        unexplained=unexplained + _tried_again(tried, kills, unreadable or Kills()),
        reports=sum(not each.reverse_path for each in relayed),
        duplicates=sum(len(each) - 1 for each in copies.values()),
        repeated=repeated,
    )


def _promised(letter: Letter) -> set[str]:
    copies = set(letter.recipients) - set(letter.refused)
    reported = {*letter.refused, *letter.asked} - set(letter.silent)
    return copies | {f"report of {recipient}" for recipient in reported}


def _told(seen: Seen) -> list[str]:
    if seen.reverse_path:
        return list(seen.recipients)
    return [f"report of {recipient.decode()}" for recipient, _ in _REPORTED.findall(seen.content)]


def _tried_again(tried: Sequence[tuple[str, int]], *reasons: Kills) -> list[str]:
    """Return the recipients tried again after a refusal for good, without a reason in between."""
    at_ns: dict[str, list[int]] = defaultdict(list)
    for recipient, each_ns in tried:
        if recipient.startswith("bad"):
            at_ns[recipient].append(each_ns)
    return [
        recipient
        for recipient, instants in at_ns.items()
        if any(all(each.between(*pair) is None for each in reasons) for pair in pairwise(instants))
    ]


RELAYED, ENDED = r"\]: (\S+: to=<.*?>), .* status=sent", r"\]: (\S+): removed"


def told_twice(log: Iterable[str], event: str) -> list[str]:
    """Return what the log calls RELAYED, or ENDED, more than once; it says so once that is durable."""
    told = Counter(found[1] for line in log if (found := re.search(event, line)))
    assert told, "the log tells of nobody"
    return [each for each, times in told.items() if times > 1]


def _explain(
    copies: Mapping[str, Sequence[tuple[int, Seen]]], kills: Kills
) -> tuple[list[str], dict[int, set[int]]]:
    unexplained: list[str] = []
    repeated: dict[int, set[int]] = defaultdict(set)
    for recipient, of_recipient in copies.items():
        for (index, one), (_, other) in pairwise(of_recipient):
            reason = kills.between(one.mail_at_ns, other.mail_at_ns)
            if reason is None:
                unexplained.append(recipient)
            else:
                repeated[reason].add(index)
    return unexplained, dict(repeated)


def _fault(seen: Seen, letter: Callable[[int], Letter]) -> str | None:
    """Return what is wrong with a message that arrived; only one `Received:` on top may be new."""
    if not seen.reverse_path:
        return _report_fault(seen)
    found = _NUMBER.fullmatch(seen.recipients[0])
    if found is None:
        return f"to {seen.recipients}"
    sent = letter(int(found[1] or found[2]))
    if seen.reverse_path != sent.sender or not set(seen.recipients) <= set(sent.recipients):
        return f"{sent.number}: from {seen.reverse_path} to {seen.recipients}"
    if len(set(seen.recipients)) < len(seen.recipients):
        return f"{sent.number}: twice to one recipient in a transaction"
    if _RECEIVED.sub(b"", seen.content, count=1) != sent.content:
        return f"{sent.number}: other content"
    return None


def _report_fault(seen: Seen) -> str | None:
    """Return what is wrong with a report.

    It tells the sender of one refused recipient, with the reason, or of one relayed, or of one each.
    """
    recipients, content = seen.recipients, seen.content
    told = _REPORTED.findall(content)
    of_kinds = [(re.sub(rb"[0-9]+@.*", b"", recipient), action) for recipient, action in told]
    is_of_others = not set(of_kinds) <= {(b"bad", b"failed"), (b"told", b"relayed")}
    if is_of_others or len(set(of_kinds)) != len(of_kinds):
        return f"a report of {told}"
    if recipients != (SENDER,) or not told or content.count(_FINAL) != len(told):
        return f"a report of {told} to {recipients}"
    if (b"550 5.1.1" in content) is not ((b"bad", b"failed") in of_kinds):
        return f"a report of {told} that does not say why"
    return None
