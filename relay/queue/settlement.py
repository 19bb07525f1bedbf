"""What one attempt means for a message: which recipients are through, and when the rest goes on.  Pure.

The rules, in one place:
- relayed and refused for good are final for a recipient; both are marked on disk;
- a transient refusal is an attempt: the message is deferred by its age (Postfix's rule),
  and once it is older than `lifetime`, this refusal was the last: the recipient expires;
- a refusal that is about us is no attempt: the message waits, and nothing of it changes;
- recipients that were not asked about (split by a limit or by the upstream's maximum)
  go in the next transaction, at once, while deferred ones wait until all were tried.
Only a refusal can expire a message: neither waiting for room in a window nor a lost reply does,
nor the first refusal of a recipient that is doubted.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from relay.queue.delay_warnings import is_to_be_told
from relay.queue.queued import back_off_ns
from relay.smtp.reply import Phase
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.verdict import Verdict

EARLIER = "deferred by an earlier transaction"
"""Why a message waits of which nobody was deferred by the last one."""


class Fate(enum.StrEnum):
    """What an attempt came to for one recipient."""

    RELAYED = "relayed"
    DEFERRED = "deferred"
    BOUNCED = "bounced"
    EXPIRED = "expired"
    WAITING = "waiting"
    """Not attempted after all."""


class Next(enum.StrEnum):
    """What becomes of the message."""

    FINISH = "finish"
    """No recipient is left."""
    AGAIN = "again"
    """Some were not tried yet, or not for a reason of theirs: at once."""
    POSTPONE = "postpone"
    """All were tried, some are deferred."""
    GIVE_BACK = "give back"
    """It was not attempted: back to the front."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The policy's `retry`, as spans in nanoseconds."""

    min_ns: int
    max_ns: int
    lifetime_ns: int
    warn_after_ns: int | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """The decision about one attempt, ready to be written down."""

    fates: dict[int, tuple[Fate, Answer]]
    """By index of the recipient in the envelope."""
    next: Next
    tried: frozenset[int]
    """Recipients that are deferred and wait for the others to be tried."""
    recipients_left: int
    back_off_ns: int = 0
    """For POSTPONE."""
    reason: str = ""
    """Why recipients are left."""
    warns: bool = False
    """The sender should be told that the message is late."""


def settle(
    *,
    left: Sequence[int],
    asked: Sequence[int],
    tried_before: Collection[int],
    outcome: Outcome,
    age_ns: int,
    terms: Terms,
    paused_ns: int = 0,
) -> Settlement:
    """Decide about a message after a transaction.

    `left` are the indices of all recipients that were to do before it, `asked` those of
    the transaction, in the order of the outcome's answers.  `paused_ns` is for how long it
    was in the queue beside its age.
    """
    answers = dict(zip(asked, outcome.answers, strict=True))
    is_only_later = all(answer.verdict is Verdict.LATER for answer in answers.values())
    fates = {
        index: (_fate(answer, is_only_later=is_only_later, is_old=age_ns >= terms.lifetime_ns), answer)
        for index, answer in answers.items()
    }
    final = {i for i, (fate, _) in fates.items() if fate in (Fate.RELAYED, Fate.BOUNCED, Fate.EXPIRED)}
    deferred = {i for i, (fate, _) in fates.items() if fate is Fate.DEFERRED}
    still = [index for index in left if index not in final]
    tried = frozenset((deferred | set(tried_before)) & set(still))
    reason = next((answer.text for fate, answer in fates.values() if fate is Fate.DEFERRED), "")
    if not still:
        return Settlement(fates, Next.FINISH, frozenset(), 0)
    if all(fate is Fate.WAITING for fate, _ in fates.values()):
        because = next(answer.text for _, answer in fates.values())
        return Settlement(fates, Next.GIVE_BACK, tried, len(still), reason=because)
    if set(still) - tried:
        return Settlement(fates, Next.AGAIN, tried, len(still), reason=reason)
    late_ns = age_ns + paused_ns
    warns = is_to_be_told(late_ns=late_ns, left_ns=late_ns, warn_after_ns=terms.warn_after_ns)
    return Settlement(
        fates,
        Next.POSTPONE,
        frozenset(),
        len(still),
        back_off_ns(age_ns, terms.min_ns, terms.max_ns),
        reason or EARLIER,
        warns,
    )


def _fate(answer: Answer, *, is_only_later: bool, is_old: bool) -> Fate:
    match answer.verdict:
        case Verdict.RELAYED:
            return Fate.RELAYED
        case Verdict.BOUNCE:
            return Fate.BOUNCED
        case Verdict.PAUSE | Verdict.STOP:
            return Fate.WAITING
        case Verdict.LATER if not is_only_later or answer.phase is Phase.MAIL:
            # The others made progress, or it was about us; or at MAIL, where nobody was asked
            # yet: a kept connection had died.
            return Fate.WAITING
        case _:
            # LATER for every recipient is no progress: it would be asked again without end.
            # Silence refuses nobody: after the final dot the message may even have been taken.
            is_last = is_old and answer.reply is not None and not answer.is_doubted
            return Fate.EXPIRED if is_last else Fate.DEFERRED
