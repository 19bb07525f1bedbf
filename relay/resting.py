"""Senders whose mail waits because the upstream refuses them: how long, and who proves it is over.  Pure.

All instants are nanoseconds of one boot.
"""

from dataclasses import dataclass

FIRST_REST_NS = 15 * 60 * 10**9
"""How long the mail of a sender waits that the upstream refuses."""
LONGEST_REST_NS = 4 * 3600 * 10**9
PROOF_NS = 60 * 10**9
"""How long the others wait while one message proves that a sender is welcome again."""
MOST_RESTING = 10_000
"""Senders that are remembered as resting."""


@dataclass(slots=True)
class Rest:
    """A sender whose mail the upstream refuses for now."""

    until_ns: int
    reason: str
    in_a_row: int = 0


class Resting:
    """The senders that rest."""

    def __init__(self) -> None:
        self._rests: dict[str, Rest] = {}

    def begin(self, reverse_path: str, now_ns: int, reason: str) -> int:
        """Let a sender rest, longer each time in a row; return until when."""
        if len(self._rests) >= MOST_RESTING:
            # The oldest is asked about again: it costs one refusal.
            self._rests.pop(next(iter(self._rests)))
        rest = self._rests.pop(reverse_path, None)
        if rest is not None and rest.until_ns > now_ns + PROOF_NS:
            # Nobody was proving: it was in flight together with the one that began this rest.
            self._rests[reverse_path] = rest
            return rest.until_ns
        in_a_row = 0 if rest is None else rest.in_a_row + 1
        until_ns = now_ns + min(LONGEST_REST_NS, FIRST_REST_NS << min(in_a_row, 10))
        self._rests[reverse_path] = Rest(until_ns, reason, in_a_row)
        return until_ns

    def end(self, reverse_path: str) -> bool:
        """Forget that a sender rests; return whether it did."""
        return self._rests.pop(reverse_path, None) is not None

    def of(self, reverse_path: str, now_ns: int) -> Rest | None:
        """Return the rest of a sender, if it is not over."""
        rest = self._rests.get(reverse_path) if self._rests else None
        return None if rest is None or rest.until_ns <= now_ns else rest

    def prove(self, reverse_path: str, now_ns: int) -> None:
        """Let one message of a sender whose rest is over go ahead of its others."""
        if self._rests and (rest := self._rests.get(reverse_path)) is not None:
            rest.until_ns = now_ns + PROOF_NS

    def senders(self) -> dict[str, int]:
        """Return who rests, or has not proven itself since, and until when."""
        return {reverse_path: rest.until_ns for reverse_path, rest in self._rests.items()}
