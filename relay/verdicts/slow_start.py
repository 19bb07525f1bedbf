"""How carefully an upstream is used that refused us for too much, until it is trusted again.  Pure.

A proving transaction of the usual size may be more than the upstream ever takes at once: then it is
refused, and charged, each time, and no mail goes for ever.  So the first goes to one recipient, and
each later one to no more than were taken since, and one: 1, 2, 4, 8.

Nor does one message that was taken end a block.  Where the upstream speaks of a window ("per hour") and
refuses again within an hour, the back-off begins one step below where it ended: a long block is met with
fewer looks each time.  Without a window the refusal may be one message's fault, and then everybody would
wait longer for it.
"""

from dataclasses import dataclass

from relay.verdicts.pause_record import PROBE_NS, window_ns
from relay.verdicts.verdict import Excess, Ruling

CALM_NS = PROBE_NS
"""So long after the last refusal for too much in a window, the next one begins anew."""
LAST_STEP = 6
"""The step at which the back-off is at its longest."""


def largest(usual: int, taken: int | None) -> int:
    """Return how many recipients a transaction may have after so many were taken; None: it is trusted."""
    return usual if taken is None else min(usual, taken + 1)


@dataclass(slots=True)
class SlowStart:
    taken: int | None = None
    """How many recipients the upstream took since it refused; None where it did not refuse."""
    _at_ns: int | None = None
    """When it last refused for too much in a window."""
    first_step: int = 0
    """Where this row of refusals began in the back-off; more than 0 where it goes on from the last row."""
    _step: int = 0

    def refused(self, ruling: Ruling | None, *, is_again: bool) -> None:
        """Begin with little after too much, or after a repeated refusal for whatever reason."""
        if is_again or _is_too_much(ruling):
            self.taken = 0

    def largest(self, usual: int, announced: int | None = None) -> int:
        return largest(min(usual, announced or usual), self.taken)

    def took(self, recipients: int) -> None:
        if self.taken is not None:
            self.taken += recipients

    def begin_anew(self) -> None:
        """Forget where the last row of refusals ended."""
        self._at_ns, self.first_step, self._step = None, 0, 0

    def step(self, ruling: Ruling | None, in_a_row: int, now_ns: int) -> int:
        """Return the back-off's step at a refusal, after so many in a row without a success."""
        is_windowed = ruling is not None and _is_too_much(ruling) and window_ns(ruling) is not None
        if in_a_row == 0:
            is_soon = self._at_ns is not None and now_ns - self._at_ns < CALM_NS
            self.first_step = max(0, self._step - 1) if is_windowed and is_soon else 0
        step = min(LAST_STEP, self.first_step + in_a_row)
        if is_windowed:
            self._at_ns, self._step = now_ns, step
        return step


def _is_too_much(ruling: Ruling | None) -> bool:
    return ruling is not None and ruling.excess is Excess.MAIL
