"""Sender pauses: whose mail waits because the upstream refuses the sender, and for how long.  Pure.

A pause adds nothing to the age of the sender's mail (`rests_of`), also after it ended.  Only a pause that
the shield began ages the mail, since nothing shows that the upstream refuses the sender.  After a pause the
mail goes like any other; if the sender is refused again, the next pause is longer.

`sender` is `Origin.sender`.  Memory is bounded, and lost at a restart.
"""

from dataclasses import dataclass

from relay.verdicts.account import PauseSpan
from relay.verdicts.decision import EVIDENT

FIRST_REST_NS = 15 * 60 * 10**9
"""The first pause of a sender, unless the refusal asks for a longer one."""
LONGEST_REST_NS = 4 * 3600 * 10**9
"""The longest pause, unless the refusal asks for a longer one."""
MOST_RESTING = 10_000
"""How many senders are remembered."""
MOST_RESTS = 64
"""How many earlier pauses of one sender are kept that do not age its mail; the oldest are dropped."""


@dataclass(slots=True)
class SenderPause:
    since_ns: int
    until_ns: int
    reason: str
    ages: bool
    earlier: tuple[PauseSpan, ...] = ()
    """Earlier pauses of the sender that do not age its mail."""
    in_a_row: int = 0
    evident: int = 0
    """Refusals in a row, each after the upstream relayed mail of other senders."""
    is_open: bool = True
    """The upstream relayed no mail of the sender since, and no operator ended the pause."""


class SenderPauses:
    def __init__(self) -> None:
        self._pauses: dict[str, SenderPause] = {}
        """The latest pause of each sender."""

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
        """Pause a sender's mail, longer each time in a row; return when the pause ends.

        `relayed_from_ns` is when the latest transaction began that relayed something.  `asked_ns` is the
        least wait that the refusal asks for.
        """
        if (running := self.current(sender, now_ns)) is not None:
            # This transaction was in flight when the pause began: it can only extend the pause.
            running.until_ns = max(running.until_ns, now_ns + asked_ns)
            return running.until_ns
        pause = SenderPause(now_ns, now_ns, reason, ages, self.rests_of(sender)[-MOST_RESTS:])
        before = self._pauses.pop(sender, None)
        if before is not None and before.is_open:
            pause.in_a_row = before.in_a_row + 1
            pause.evident = before.evident + 1 if relayed_from_ns > before.since_ns else 0
        if len(self._pauses) >= MOST_RESTING:
            # Forget the oldest pause: the sender's mail is tried again, which costs one refusal.
            del self._pauses[next(iter(self._pauses))]
        pause.until_ns += max(asked_ns, min(LONGEST_REST_NS, FIRST_REST_NS << min(pause.in_a_row, 10)))
        self._pauses[sender] = pause
        return pause.until_ns

    def end(self, sender: str, now_ns: int) -> bool:
        """End the pause of a sender; return False if there is none, or it was ended before."""
        if (pause := self._pauses.get(sender)) is None or not pause.is_open:
            return False
        pause.until_ns, pause.is_open = min(pause.until_ns, now_ns), False
        return True

    def current(self, sender: str, now_ns: int) -> SenderPause | None:
        """Return the pause of a sender whose mail waits now; else None."""
        pause = self._pauses.get(sender)
        return None if pause is None or pause.until_ns <= now_ns else pause

    def rests_of(self, sender: str) -> tuple[PauseSpan, ...]:
        """Return the spans, ascending, in which the sender's mail waited or waits and did not age."""
        if (pause := self._pauses.get(sender)) is None:
            return ()
        return pause.earlier if pause.ages else (*pause.earlier, (pause.since_ns, pause.until_ns))

    def is_alone(self, sender: str, relayed_from_ns: int) -> bool:
        """Return whether a refusal now completes a row that is evidently about the sender alone.

        `relayed_from_ns` is when the latest transaction began that relayed mail of other senders.
        """
        pause = self._pauses.get(sender)
        if pause is None or not pause.is_open or relayed_from_ns <= pause.since_ns:
            return False
        return pause.evident + 1 >= EVIDENT

    def senders(self) -> dict[str, int]:
        """Return the senders that wait, or of which no mail was relayed since, and until when each waits."""
        return {sender: pause.until_ns for sender, pause in self._pauses.items() if pause.is_open}
