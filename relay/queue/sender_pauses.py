"""Senders whose mail waits because the upstream refuses them: how long, and what proves it is over.  Pure.

The time of a rest is not part of the age of the sender's mail: `rests_of` tells of it, also once it is over.
It is part of the age where the shield began the rest: nothing shows then that the sender is refused.

`sender` is what all spellings of its address share (`Queued.sender`).  All instants
are nanoseconds of one boot.  Memory is bounded, and lost at a restart.
"""

from dataclasses import dataclass, replace

from relay.verdicts.decision import EVIDENT
from relay.verdicts.operator_pause import FOREVER_NS
from relay.verdicts.pauses import Paused, begun, ended

FIRST_REST_NS = 15 * 60 * 10**9
"""How long the mail of a refused sender waits, if the refusal asks for no more."""
LONGEST_REST_NS = 4 * 3600 * 10**9
"""The longest rest, if the refusal asks for no more."""
PROOF_NS = 60 * 10**9
"""How long the others wait while one message proves that its sender is welcome again."""
MOST_RESTING = 10_000
"""Senders that are remembered as resting."""


@dataclass(slots=True)
class Rest:
    until_ns: int
    reason: str
    since_ns: int
    in_a_row: int = 0
    alone: int = 0
    """Refusals in a row that others' mail was relayed in between."""
    ages: bool = False
    """Its time is part of the age of the sender's mail."""
    over_ns: int | None = None
    """When the first message went to prove that it is over; until proven it goes on, also past `until_ns`."""

    def span(self, now_ns: int) -> Paused:
        """Return when the sender's mail did not age."""
        if self.ages:
            return self.since_ns, self.since_ns
        return self.since_ns, now_ns if self.over_ns is None else self.over_ns


class SenderPauses:
    def __init__(self) -> None:
        self._rests: dict[str, Rest] = {}
        self._over: dict[str, tuple[Paused, ...]] = {}

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

        Waiting mail is not attempted, and ages only where the rest `ages`; then one message goes first, to
        prove that the others may follow.  `relayed_from_ns` is when the latest transaction began that
        relayed something; `asked_ns` is the least wait by the refusal.
        """
        rest = self._rests.pop(sender, None)
        if rest is not None and rest.until_ns > now_ns + PROOF_NS:
            # Nobody was proving: it was in flight together with the one that began this rest.
            rest.until_ns = max(rest.until_ns, now_ns + asked_ns)
            self._rests[sender] = rest
            return rest.until_ns
        in_a_row = 0 if rest is None else rest.in_a_row + 1
        alone = 0
        if rest is not None:
            self._remember(sender, rest, now_ns)
            alone = rest.alone + 1 if relayed_from_ns > rest.since_ns else 0
        if len(self._rests) >= MOST_RESTING:
            # The oldest is asked about again: it costs one refusal.
            self.end(next(iter(self._rests)), now_ns)
        until_ns = now_ns + max(asked_ns, min(LONGEST_REST_NS, FIRST_REST_NS << min(in_a_row, 10)))
        self._rests[sender] = Rest(until_ns, reason, now_ns, in_a_row, alone, ages)
        return until_ns

    def end(self, sender: str, now_ns: int) -> None:
        if (rest := self._rests.pop(sender, None)) is not None:
            self._remember(sender, rest, now_ns)

    def copy(self) -> "SenderPauses":
        """Return an independent copy of the rests that are not over."""
        twin = SenderPauses()
        twin._rests = {sender: replace(rest) for sender, rest in self._rests.items()}
        return twin

    def is_alone(self, sender: str, relayed_from_ns: int) -> bool:
        """Return whether a refusal now is one of enough in a row that are evidently about the sender alone.

        `relayed_from_ns` is when the latest transaction began that others had relayed.
        """
        rest = self._rests.get(sender)
        return rest is not None and rest.alone + 1 >= EVIDENT and relayed_from_ns > rest.since_ns

    def rests_of(self, sender: str) -> tuple[Paused, ...]:
        """Return when a sender rested, and rests, and its mail did not age; ascending."""
        spans, rest = self._over.get(sender, ()), self._rests.get(sender)
        return spans if rest is None else (*spans, rest.span(FOREVER_NS))

    def of(self, sender: str, now_ns: int) -> Rest | None:
        rest = self._rests.get(sender) if self._rests else None
        return None if rest is None or rest.until_ns <= now_ns else rest

    def prove(self, sender: str, now_ns: int) -> None:
        """Let one message of a sender whose rest is over go ahead of its others."""
        if self._rests and (rest := self._rests.get(sender)) is not None:
            rest.until_ns = now_ns + PROOF_NS
            rest.over_ns = now_ns if rest.over_ns is None else rest.over_ns

    def withdraw(self, sender: str, now_ns: int) -> None:
        """Undo `prove`: the message did not go after all."""
        rest = self._rests.get(sender) if self._rests else None
        if rest is not None and rest.over_ns is not None:
            rest.until_ns = min(rest.until_ns, now_ns)
            rest.over_ns = None if rest.over_ns == now_ns else rest.over_ns

    def senders(self) -> dict[str, int]:
        """Return the senders that rest or have not proven themselves since, and until when."""
        return {sender: rest.until_ns for sender, rest in self._rests.items()}

    def _remember(self, sender: str, rest: Rest, now_ns: int) -> None:
        begin_ns, end_ns = rest.span(now_ns)
        self._over[sender] = ended(begun(self._over.pop(sender, ()), begin_ns), end_ns)
        if len(self._over) > MOST_RESTING:
            del self._over[next(iter(self._over))]
