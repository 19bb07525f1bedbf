"""Senders whose mail waits because the upstream refuses them, and for how long.  Pure.

A rest is no part of the age of the sender's mail (`rests_of`), also once it is over; but where the shield
began it, nothing shows that the sender is refused, and it `ages`.  What comes behind a rest goes as all else:
if it is refused again the next rest is longer.

`sender` is what all spellings of its address share (`Queued.sender`).  All instants are nanoseconds of one
boot.  Memory is bounded, and lost at a restart.
"""

from dataclasses import dataclass

from relay.verdicts.decision import EVIDENT
from relay.verdicts.pauses import Paused

FIRST_REST_NS = 15 * 60 * 10**9
"""How long the mail of a refused sender waits, if the refusal asks for no more."""
LONGEST_REST_NS = 4 * 3600 * 10**9
"""The longest rest, if the refusal asks for no more."""
MOST_RESTING = 10_000
"""Senders that are remembered."""
MOST_RESTS = 64
"""Earlier rests of one sender count as age."""


@dataclass(slots=True)
class Rest:
    since_ns: int
    until_ns: int
    reason: str
    in_a_row: int = 0
    alone: int = 0
    """Refusals in a row that others' mail was relayed in between."""
    spans: tuple[Paused, ...] = ()
    """When the sender's mail did not age, as far as it is over."""
    ages: bool = False
    is_trusted: bool = False
    """The upstream took mail of it again, or somebody acted: of the rest only its time still counts."""

    def rests(self) -> tuple[Paused, ...]:
        if self.ages or self.is_trusted:
            return self.spans
        return (*self.spans, (self.since_ns, self.until_ns))


class SenderPauses:
    def __init__(self) -> None:
        self._rests: dict[str, Rest] = {}

    def begin(
        self,
        sender: str,
        now_ns: int,
        reason: str,
        relayed_from_ns: int = 0,
        asked_ns: int = 0,
        *,
        ages: bool = False,
    ) -> int:
        """Let a sender's mail wait, longer each time in a row; return until when.

        `relayed_from_ns` is when the latest transaction began that relayed something; `asked_ns` is the
        least wait by the refusal.
        """
        rest = self._unproven(sender)
        if rest is not None and rest.until_ns > now_ns:
            # It was in flight together with the one that began this rest.
            rest.until_ns = max(rest.until_ns, now_ns + asked_ns)
            return rest.until_ns
        in_a_row = 0 if rest is None else rest.in_a_row + 1
        alone = rest.alone + 1 if rest is not None and relayed_from_ns > rest.since_ns else 0
        until_ns = now_ns + max(asked_ns, min(LONGEST_REST_NS, FIRST_REST_NS << min(in_a_row, 10)))
        spans = self.rests_of(sender)[-MOST_RESTS:]
        self._rests.pop(sender, None)
        if len(self._rests) >= MOST_RESTING:
            # The oldest is asked about again: it costs one refusal.
            del self._rests[next(iter(self._rests))]
        self._rests[sender] = Rest(now_ns, until_ns, reason, in_a_row, alone, spans, ages)
        return until_ns

    def end(self, sender: str, now_ns: int) -> None:
        if (rest := self._unproven(sender)) is not None:
            rest.until_ns = min(rest.until_ns, now_ns)
            rest.spans, rest.is_trusted = rest.rests(), True

    def is_alone(self, sender: str, relayed_from_ns: int) -> bool:
        """Return whether a refusal now is one of enough in a row that are evidently about the sender alone.

        `relayed_from_ns` is when the latest transaction began that others had relayed.
        """
        rest = self._unproven(sender)
        return rest is not None and relayed_from_ns > rest.since_ns and rest.alone + 1 >= EVIDENT

    def rests_of(self, sender: str) -> tuple[Paused, ...]:
        """Return when a sender rested, and rests, and its mail did not age; ascending."""
        return () if (rest := self._rests.get(sender)) is None else rest.rests()

    def of(self, sender: str, now_ns: int) -> Rest | None:
        rest = self._rests.get(sender) if self._rests else None
        return None if rest is None or rest.until_ns <= now_ns else rest

    def _unproven(self, sender: str) -> Rest | None:
        rest = self._rests.get(sender) if self._rests else None
        return None if rest is None or rest.is_trusted else rest

    def senders(self) -> dict[str, int]:
        """Return the senders that rest or have not proven themselves since, and until when."""
        return {sender: rest.until_ns for sender, rest in self._rests.items() if not rest.is_trusted}
