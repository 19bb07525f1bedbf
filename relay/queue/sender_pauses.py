"""Senders whose mail waits because the upstream refuses them, and for how long.  Pure.

A pause is no part of the age of the sender's mail (`rests_of`), also once it is over; but where the shield
began it, nothing shows that the sender is refused, and the mail ages.  After a pause the mail goes as all
else: if it is refused again the next pause is longer.

`sender` is `Origin.sender`.  Memory is bounded, and lost at a restart.
"""

from dataclasses import dataclass

from relay.verdicts.account import Paused
from relay.verdicts.decision import EVIDENT

FIRST_REST_NS = 15 * 60 * 10**9
"""How long the mail of a refused sender waits, if the refusal asks for no more."""
LONGEST_REST_NS = 4 * 3600 * 10**9
"""The longest pause, if the refusal asks for no more."""
MOST_RESTING = 10_000
"""Senders that are remembered."""
MOST_RESTS = 64
"""Earlier pauses of one sender that are no age of its mail; the latest count."""


@dataclass(slots=True)
class SenderPause:
    since_ns: int
    until_ns: int
    reason: str
    ages: bool
    earlier: tuple[Paused, ...] = ()
    """The sender's pauses before it that are no age of its mail."""
    in_a_row: int = 0
    alone: int = 0
    """Refusals in a row that others' mail was relayed in between."""
    is_open: bool = True
    """The upstream took no mail of the sender since, and nobody acted for it."""

    @property
    def rests(self) -> tuple[Paused, ...]:
        """Return when the sender's mail waited, and waits, and did not age; ascending."""
        return self.earlier if self.ages else (*self.earlier, (self.since_ns, self.until_ns))


class SenderPauses:
    def __init__(self) -> None:
        self._pauses: dict[str, SenderPause] = {}
        """The last one of each sender."""

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
        before = self._pauses.pop(sender, None)
        if before is not None and before.is_open and before.until_ns > now_ns:
            # The refused transaction was in flight together with the one that began this pause.
            before.until_ns = max(before.until_ns, now_ns + asked_ns)
            self._pauses[sender] = before
            return before.until_ns
        pause = SenderPause(now_ns, now_ns, reason, ages)
        if before is not None:
            pause.earlier = before.rests[-MOST_RESTS:]
            if before.is_open:
                pause.in_a_row = before.in_a_row + 1
                pause.alone = before.alone + 1 if relayed_from_ns > before.since_ns else 0
        elif len(self._pauses) >= MOST_RESTING:
            # The oldest is asked about again: it costs one refusal.
            del self._pauses[next(iter(self._pauses))]
        pause.until_ns += max(asked_ns, min(LONGEST_REST_NS, FIRST_REST_NS << min(pause.in_a_row, 10)))
        self._pauses[sender] = pause
        return pause.until_ns

    def end(self, sender: str, now_ns: int) -> None:
        pause = self._pauses.get(sender)
        if pause is not None and pause.is_open:
            pause.until_ns, pause.is_open = min(pause.until_ns, now_ns), False

    def of(self, sender: str, now_ns: int) -> SenderPause | None:
        """Return the pause of a sender whose mail waits now."""
        pause = self._pauses.get(sender)
        return None if pause is None or pause.until_ns <= now_ns else pause

    def rests_of(self, sender: str) -> tuple[Paused, ...]:
        return () if (pause := self._pauses.get(sender)) is None else pause.rests

    def is_alone(self, sender: str, relayed_from_ns: int) -> bool:
        """Return whether a refusal now is one of enough in a row that are evidently about the sender alone.

        `relayed_from_ns` is when the latest transaction began that others had relayed.
        """
        pause = self._pauses.get(sender)
        if pause is None or not pause.is_open or relayed_from_ns <= pause.since_ns:
            return False
        return pause.alone + 1 >= EVIDENT

    def senders(self) -> dict[str, int]:
        """Return the senders that wait or have not proven themselves since, and until when."""
        return {sender: pause.until_ns for sender, pause in self._pauses.items() if pause.is_open}
