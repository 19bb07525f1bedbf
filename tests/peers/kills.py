"""What an upstream must have seen of mail that was relayed while programs were killed.

The judge knows the promises and nothing of the relay: it compares what clients were told
(`Feeder`), what the upstream took (`Practice`), and when something was killed.

Two copies of a message need a reason: something was killed after the MAIL of the first
and before the MAIL of the second.  And each kill is a reason for so many transactions
only as can be under way at once, one a connection.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from relay.practice.ledger import Fate
from tests.peers.feeder import SENDER, Letter, letter
from tests.peers.practice import Practice, Seen

_RECEIVED = re.compile(rb"\AReceived: from .*\r\n\tby relay\.test .*\r\n(?:[ \t].*\r\n)*")
_NUMBER = re.compile(r"r([0-9]+)\.[0-9]+@list\.test")


@dataclass(slots=True)
class Kills:
    """When something was killed whose death can make the relay send again, by boottime."""

    spans_ns: list[tuple[int, int]] = field(default_factory=list)
    """Just before and just after each."""

    @contextmanager
    def one(self) -> Iterator[None]:
        """Note the time that a kill takes."""
        before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        try:
            yield
        finally:
            self.spans_ns.append((before_ns, time.clock_gettime_ns(time.CLOCK_BOOTTIME)))

    def between(self, one: Seen, other: Seen) -> int | None:
        """Return the first kill that lies between two transactions' MAILs, or that may."""
        for index, (before_ns, after_ns) in enumerate(self.spans_ns):
            if one.mail_at_ns <= after_ns and before_ns <= other.mail_at_ns:
                return index
        return None


@dataclass(slots=True)
class Verdict:
    """What the judge found.  All but the figures must be empty."""

    lost: set[str]
    """Recipients of acknowledged messages that never arrived."""
    foreign: set[str]
    """Recipients that nobody wrote to."""
    corrupt: list[str]
    """Messages that arrived otherwise than they were written."""
    unexplained: list[str]
    """Recipients who got a copy that no kill explains."""
    relayed: int
    """Transactions that the upstream took."""
    duplicates: int
    """Recipients who got a copy too many, each time counted."""
    repeated: dict[int, set[int]]
    """For each kill the transactions that were repeated because of it, by where they stand in the record."""

    @property
    def most_repeated(self) -> int:
        """Return the most transactions that one kill was the reason to repeat."""
        return max(map(len, self.repeated.values()), default=0)

    def assert_good(self, *, connections: int) -> None:
        """Fail with everything that is wrong."""
        faults = (self.lost, self.foreign, self.corrupt, self.unexplained)
        assert faults == (set(), set(), [], []), "lost, foreign, corrupt, unexplained"
        assert self.most_repeated <= connections, self.repeated


def judge(
    host: Practice,
    kills: Kills,
    acknowledged: Collection[int],
    attempted: Collection[int],
    *,
    letter: Callable[[int], Letter] = letter,
) -> Verdict:
    """Judge letters by what their upstream has on record; it must have been told to keep content."""
    relayed = [seen for seen in host.seen() if seen.entry.fate is Fate.RELAYED]
    copies: dict[str, list[tuple[int, Seen]]] = defaultdict(list)
    for index, seen in sorted(enumerate(relayed), key=lambda each: each[1].mail_at_ns):
        for recipient in seen.entry.envelope.recipients:
            copies[recipient].append((index, seen))
    written = {recipient for number in attempted for recipient in letter(number).recipients}
    promised = {recipient for number in acknowledged for recipient in letter(number).recipients}
    corrupt = [fault for seen in relayed if (fault := _fault(seen, host.content_of, letter)) is not None]
    unexplained, repeated = _explain(copies, kills)
    return Verdict(
        lost=promised - set(copies),
        foreign=set(copies) - written,
        corrupt=corrupt,
        unexplained=unexplained,
        relayed=len(relayed),
        duplicates=sum(len(each) - 1 for each in copies.values()),
        repeated=repeated,
    )


def told_relayed_twice(log: Sequence[str]) -> list[str]:
    """Return ids and recipients that the log, which speaks after the disk, calls relayed more than once."""
    sent = Counter(
        found[1] for line in log if (found := re.search(r"\]: (\S+: to=<.*?>), .* status=sent", line))
    )
    assert sent, "the log tells of nobody"
    return [recipient for recipient, times in sent.items() if times > 1]


def _explain(
    copies: Mapping[str, Sequence[tuple[int, Seen]]], kills: Kills
) -> tuple[list[str], dict[int, set[int]]]:
    unexplained: list[str] = []
    repeated: dict[int, set[int]] = defaultdict(set)
    for recipient, of_recipient in copies.items():
        for (index, one), (_, other) in pairwise(of_recipient):
            reason = kills.between(one, other)
            if reason is None:
                unexplained.append(recipient)
            else:
                repeated[reason].add(index)
    return unexplained, dict(repeated)


def _fault(seen: Seen, content_of: Callable[[Seen], bytes], letter: Callable[[int], Letter]) -> str | None:
    """Return what is wrong with a message that arrived: anything but one `Received:` on top."""
    envelope = seen.entry.envelope
    found = _NUMBER.fullmatch(envelope.recipients[0])
    if found is None:
        return f"to {envelope.recipients}"
    sent = letter(int(found[1]))
    if envelope.reverse_path != SENDER or not set(envelope.recipients) <= set(sent.recipients):
        return f"{sent.number}: from {envelope.reverse_path} to {envelope.recipients}"
    if len(set(envelope.recipients)) < len(envelope.recipients):
        return f"{sent.number}: twice to one recipient in a transaction"
    if _RECEIVED.sub(b"", content_of(seen), count=1) != sent.content:
        return f"{sent.number}: other content"
    return None
