"""What one outcome means for its recipients, its message, its sender and its upstream.  Pure.

`decide` is asked once for each attempt, with what is known at its end (`Standing`).  `Shield` says which
refusals are believed, and remembers; nothing else is changed by a decision.

An upstream may say `421`, speak of a limit, or deny relaying, because of something in one message.  Taken at
its word each time, that message keeps everybody waiting and never grows old.  So after `REFUSALS_IN_PLACE` in
a row it backs off, and others prove the upstream.  After `EVIDENT` more refusals, each where the upstream had
just relayed others, the refusal is its own: an attempt.  Where everybody is refused (a quota, a block)
nothing is relayed in between, so nothing is evident.  A message of a sender that is refused so, or for which
the shield has it wait, is returned once it is older than its lifetime, the sender's rests included.
A refusal can expire a recipient, and so can a reply that cannot be read; neither waiting for room, nor
silence, nor the first refusal of a recipient that is doubted.
Recipients that were not asked about (split by a limit, or by the upstream's maximum) go in the next
transaction, at once; deferred ones wait until all were tried, and then as long as the message is old.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.smtp.reply import Phase
from relay.verdicts.account import rest_ns
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Scope, Verdict

REFUSALS_IN_PLACE = 3
"""After so many refusals about us, of the upstream or of one message, the refused message backs off."""
EVIDENT = 3
"""So many refusals, with others relayed in between, are no chance."""
EARLIER = "deferred by an earlier transaction"
"""Why a message waits when its last transaction deferred no recipient."""
UNKNOWN_STATUS = "4.0.0"
"""RFC 3463: a transient failure of which no more is known."""


class Fate(enum.StrEnum):
    RELAYED = "relayed"
    DEFERRED = "deferred"
    BOUNCED = "bounced"
    EXPIRED = "expired"
    WAITING = "waiting"


FINAL = frozenset({Fate.RELAYED, Fate.BOUNCED, Fate.EXPIRED})


class Next(enum.StrEnum):
    FINISH = "finish"
    AGAIN = "again"
    """Some were not tried yet, or not for a reason of theirs: at once, behind the others."""
    POSTPONE = "postpone"
    """All were tried, some are deferred; or it was refused too often to keep its place."""
    GIVE_BACK = "give back"
    """It was not attempted: back to the front, where the upstream refused us to prove it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The policy's `retry`, as spans in nanoseconds."""

    min_ns: int
    max_ns: int
    lifetime_ns: int
    warn_after_ns: int | None


class Standing(NamedTuple):
    queue_id: QueueId
    recipients: Sequence[str]
    left: Sequence[int]
    """Indices of the recipients that were not final before the attempt."""
    asked: Sequence[int]
    """Of those, the recipients the attempt was for, in the order of the outcome's answers."""
    tried: Collection[int] = ()
    """Deferred recipients that wait for the others to be tried."""
    refusals: int = 0
    """In how many transactions of the message the upstream refused us, or its sender; beyond
    REFUSALS_IN_PLACE only those count before which the upstream had just relayed others."""
    in_a_row: int = 0
    """How often the upstream refused us since its last success, whichever message."""
    sender: str = ""
    """Its reverse-path, the same for all spellings of an address."""
    span_ns: tuple[int, int] = (0, 0)
    """From when to when the attempt was, by one clock for all attempts."""
    late_ns: int = 0
    """Since it was accepted; of this its upstream was paused, and that or its sender rested: no age."""
    paused_ns: int = 0
    resting_ns: int = 0
    is_well: bool = False
    """The upstream relayed what it was asked to after its last refusal about us."""
    is_sender_alone: bool = False
    """A refusal of the sender now is one of enough, with others relayed in between."""
    is_probe: bool = False
    """It was taken from another upstream's mail to prove this one, and goes back there."""


class Decision(NamedTuple):
    outcome: Outcome
    """As it counts; its `pause` is for the upstream, or for the sender by the pause's scope."""
    fates: dict[int, tuple[Fate, Answer]]
    next: Next
    tried: frozenset[int]
    age_ns: int
    """Of the message: since it was accepted, but for pauses and rests."""
    refusals: int
    back_off_ns: int
    reason: str
    """Why recipients are left, and the enhanced code of the refusal that defers them."""
    status: str
    sender_rests: Answer | None
    """The refusal for which the sender's mail waits, and how long at least."""
    rest_ns: int
    is_relayed: bool
    """Part of it was relayed: its sender is welcome."""

    def gone(self) -> set[int]:
        """Return the recipients that are final: relayed or failed."""
        return {index for index, (fate, _) in self.fates.items() if fate in FINAL}


def decide(outcome: Outcome, standing: Standing, terms: Terms, shield: Shield) -> Decision:
    """Decide what one outcome means.  Of the arguments only the shield's memory changes."""
    asked = [(index, standing.recipients[index]) for index in standing.asked]
    outcome = shield.judge(outcome, standing.sender, standing.queue_id, asked, standing.span_ns)
    outcome, age_ns, refusals = _blamed(outcome, standing, terms)
    # LATER for every recipient is no progress: it would be asked again without end.
    is_only_later = {answer.verdict for answer in outcome.answers} == {Verdict.LATER}
    is_old = age_ns >= terms.lifetime_ns
    fates = {
        index: (_fate(answer, is_only_later=is_only_later, is_old=is_old), answer)
        for index, answer in zip(standing.asked, outcome.answers, strict=True)
    }
    is_attempted = any(fate is not Fate.WAITING for fate, _ in fates.values())
    pause = outcome.pause
    about_sender = pause if pause is not None and pause.scope is Scope.SENDER else None
    deferring = {index: answer for index, (fate, answer) in fates.items() if fate is Fate.DEFERRED}
    still = [index for index in standing.left if index not in fates or fates[index][0] not in FINAL]
    tried = frozenset([index for index in still if index in deferring or index in standing.tried])
    if not still:
        to_do = Next.FINISH
    elif is_attempted:
        to_do = Next.AGAIN if len(tried) < len(still) else Next.POSTPONE
    else:
        is_often = max(refusals, standing.in_a_row + 1) >= REFUSALS_IN_PLACE
        backs_off = is_often and pause is not None and about_sender is None and not standing.is_probe
        to_do = Next.POSTPONE if backs_off else Next.GIVE_BACK
    is_postponed = to_do is Next.POSTPONE and is_attempted
    # As long as the message is old, which is Postfix's rule, within the limits.
    back_off_ns = max(terms.min_ns, min(terms.max_ns, age_ns)) if is_postponed else terms.min_ns
    because = next(iter(deferring.values()), None if is_attempted else outcome.answers[0])
    return Decision(
        outcome=outcome,
        fates=fates,
        next=to_do,
        tried=frozenset() if is_postponed else tried,
        age_ns=age_ns,
        refusals=refusals,
        back_off_ns=back_off_ns,
        reason=because.text if because is not None else EARLIER if is_postponed else "",
        status=because.status if because is not None else UNKNOWN_STATUS,
        sender_rests=about_sender,
        # Of a sender's own window our history knows nothing.
        rest_ns=0 if about_sender is None else rest_ns(about_sender.ruling, 0, lambda _span_ns: None),
        is_relayed=is_any_relayed(outcome),
    )


def _blamed(outcome: Outcome, standing: Standing, terms: Terms) -> tuple[Outcome, int, int]:
    """Return the outcome with refusals that are evidently the message's own, its age, and `refusals`."""
    pause, age_ns, refusals = outcome.pause, standing.late_ns - standing.resting_ns, standing.refusals
    if is_any_relayed(outcome):
        return outcome, age_ns, 0
    if pause is None:
        return outcome, age_ns, refusals
    # What the shield doubts is the operator's to judge, however often.
    is_asked = pause.verdict is Verdict.STOP and pause.is_doubted
    is_evidence = pause.scope is Scope.UPSTREAM and standing.is_well and not is_asked
    if refusals < REFUSALS_IN_PLACE or is_evidence:
        refusals += 1
    is_its_own = is_evidence and refusals >= REFUSALS_IN_PLACE + EVIDENT
    if pause.scope is Scope.SENDER and (standing.is_sender_alone or pause.is_doubted):
        # Its rests were no age for any other refusal, but to this one they are.
        with_rests_ns = standing.late_ns - standing.paused_ns
        if with_rests_ns >= terms.lifetime_ns:
            is_its_own, age_ns = True, with_rests_ns
    if is_its_own:
        outcome = outcome.all_as(Verdict.DEFER, about_us=True)
    return outcome, age_ns, refusals


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
            # Silence refuses nobody: after the final dot the message may even have been taken.  What
            # we ourselves say of a message (too large for a limit, an unreadable reply to it) is an
            # answer, unless it is of a connection that lacks something.
            is_told = answer.reply is not None or (answer.own_status is not None and answer.lack is None)
            is_last = is_old and is_told and not answer.is_doubted
            return Fate.EXPIRED if is_last else Fate.DEFERRED
