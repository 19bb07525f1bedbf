"""Senders whose mail waits because the upstream refuses them, and for how long.  Pure.

A pause is no part of the age of the sender's mail (`rests_of`), also once it is over; but where the shield
began it, nothing shows that the sender is refused, and the mail ages.  After a pause the mail goes as all
else: if it is refused again the next pause is longer.

`sender` is what all spellings of its address share (`Queued.sender`).  Instants are nanoseconds of one boot.
Memory is bounded, and lost at a restart.
"""

from dataclasses import dataclass
from typing import TypeVar

from relay.verdicts.account import Paused
from relay.verdicts.decision import EVIDENT

Known = TypeVar("Known")

FIRST_REST_NS = 15 * 60 * 10**9
"""How long the mail of a refused sender waits, if the refusal asks for no more."""
LONGEST_REST_NS = 4 * 3600 * 10**9
"""The longest pause, if the refusal asks for no more."""
MOST_RESTING = 10_000
"""Senders that are remembered."""
MOST_RESTS = 64
"""Earlier pauses of one sender that are no age of its mail."""


@dataclass(slots=True)
class SenderPause:
    since_ns: int
    until_ns: int
    reason: str
    ages: bool
    in_a_row: int = 0
    alone: int = 0
    """Refusals in a row that others' mail was relayed in between."""


class SenderPauses:
    def __init__(self) -> None:
        self._pauses: dict[str, SenderPause] = {}
        """Of senders of which the upstream took no mail since, and for which nobody acted."""
        self._rests: dict[str, tuple[Paused, ...]] = {}
        """Pauses that are over, and no age of the sender's mail."""

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
        before = self._pauses.get(sender)
        if before is not None and before.until_ns > now_ns:
            # The refused transaction was in flight together with the one that began this pause.
            before.until_ns = max(before.until_ns, now_ns + asked_ns)
            return before.until_ns
        pause = SenderPause(now_ns, now_ns, reason, ages)
        if before is not None:
            pause.in_a_row = before.in_a_row + 1
            pause.alone = before.alone + 1 if relayed_from_ns > before.since_ns else 0
        pause.until_ns += max(asked_ns, min(LONGEST_REST_NS, FIRST_REST_NS << min(pause.in_a_row, 10)))
        self.end(sender, now_ns)
        # Of too many the oldest is asked about again: it costs one refusal.
        _remember(self._pauses, sender, pause)
        return pause.until_ns

    def end(self, sender: str, now_ns: int) -> None:
        pause = self._pauses.pop(sender, None)
        if pause is not None and not pause.ages:
            rest = pause.since_ns, min(pause.until_ns, now_ns)
            _remember(self._rests, sender, (*self._rests.get(sender, ())[1 - MOST_RESTS :], rest))

    def of(self, sender: str, now_ns: int) -> SenderPause | None:
        """Return the pause of a sender whose mail waits now."""
        pause = self._pauses.get(sender)
        return None if pause is None or pause.until_ns <= now_ns else pause

    def rests_of(self, sender: str) -> tuple[Paused, ...]:
        """Return when a sender's mail waited, and waits, and did not age; ascending."""
        pause, rests = self._pauses.get(sender), self._rests.get(sender, ())
        return rests if pause is None or pause.ages else (*rests, (pause.since_ns, pause.until_ns))

    def is_alone(self, sender: str, relayed_from_ns: int) -> bool:
        """Return whether a refusal now is one of enough in a row that are evidently about the sender alone.

        `relayed_from_ns` is when the latest transaction began that others had relayed.
        """
        pause = self._pauses.get(sender)
        return pause is not None and relayed_from_ns > pause.since_ns and pause.alone + 1 >= EVIDENT

    def senders(self) -> dict[str, int]:
        """Return the senders that wait or have not proven themselves since, and until when."""
        return {sender: pause.until_ns for sender, pause in self._pauses.items()}


def _remember(known: dict[str, Known], sender: str, value: Known) -> None:
    known.pop(sender, None)
    if len(known) >= MOST_RESTING:
        del known[next(iter(known))]
    known[sender] = value
