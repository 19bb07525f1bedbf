"""What one outcome means for its recipients, its message, its sender and its upstream.  Pure.

`decide` is called once for each attempt, with what is known at its end (`AttemptContext`).  `Shield` says
which refusals are believed, and remembers them; a decision changes nothing else.

An upstream may answer `421`, speak of a limit, or deny relaying because of something in one message.  If each
such refusal paused the upstream, that message would delay all mail and never grow old.  So after
`REFUSALS_IN_PLACE` refusals in a row the message backs off, and other messages prove the upstream.  After
`EVIDENT` more refusals, each just after the upstream relayed other mail, the refusal is the message's own: an
attempt.  If everybody is refused (a quota, a block), nothing is relayed in between, so nothing is evident.
If the sender is refused in that way, or by the shield, its message is returned once it is older than its
lifetime, the sender's rests included.
A refusal can expire a recipient, and so can a reply that cannot be read.  Waiting for room, silence, and the
first refusal of a doubted recipient cannot.
Recipients that were not asked about (split by a limit, or by the upstream's maximum) go in the next
transaction, at once.  Deferred recipients wait until all were tried, and then as long as the message is old.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.smtp.reply import Phase
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed
from relay.verdicts.shield import SENDER_WAITS, Shield
from relay.verdicts.verdict import Scope, Verdict

REFUSALS_IN_PLACE = 3
"""After this many refusals about us, counted for the upstream or the message, the message backs off."""
EVIDENT = 3
"""This many refusals, with other mail relayed in between, are no coincidence."""
EARLIER = "deferred by an earlier transaction"
"""Why a message waits when its last transaction deferred no recipient."""
UNKNOWN_STATUS = "4.0.0"
"""RFC 3463: a transient failure without further detail."""


class Fate(enum.StrEnum):
    RELAYED = "relayed"
    DEFERRED = "deferred"
    BOUNCED = "bounced"
    EXPIRED = "expired"
    WAITING = "waiting"


FINAL = frozenset({Fate.RELAYED, Fate.BOUNCED, Fate.EXPIRED})
Fates = Mapping[int, tuple[Fate, Answer]]
"""By the index of a recipient; an answer that expired it has the status of that."""


class Next(enum.StrEnum):
    FINISH = "finish"
    AGAIN = "again"
    """Some recipients were not tried, or only put off (LATER, or about us): at once, behind the others."""
    POSTPONE = "postpone"
    """All were tried and some are deferred, or the message was refused too often to keep its place."""
    GIVE_BACK = "give back"
    """The message was not attempted: back to the front, to prove the upstream if that refused us."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The policy's `retry`, in nanoseconds."""

    min_ns: int
    max_ns: int
    lifetime_ns: int
    warn_after_ns: int | None


class AttemptContext(NamedTuple):
    queue_id: QueueId
    recipients: Sequence[str]
    left: Sequence[int]
    """Indices of the recipients that were not final before the attempt."""
    asked: Sequence[int]
    """The recipients of `left` that the attempt was for, in the order of the outcome's answers."""
    tried: Collection[int] = ()
    """Deferred recipients that wait until the others were tried."""
    refusals: int = 0
    """Transactions in which the upstream refused us, or the sender.  Beyond REFUSALS_IN_PLACE a refusal
    counts only if the upstream had just relayed other mail."""
    in_a_row: int = 0
    """How often the upstream refused us since its last success, over all messages."""
    sender: str = ""
    """The reverse-path, in one form for all spellings of the address."""
    span_ns: tuple[int, int] = (0, 0)
    """The begin and end of the attempt, by one clock for all attempts."""
    late_ns: int = 0
    """Time since the message was accepted.  During `paused_ns` of it the upstream was paused, during
    `either_paused_ns` the upstream or the sender: that is no age."""
    paused_ns: int = 0
    either_paused_ns: int = 0
    is_well: bool = False
    """A transaction that began after the last refusal about us relayed something."""
    is_sender_alone: bool = False
    """A refusal of the sender now completes a long enough row, with other mail relayed in between."""
    is_probe: bool = False
    """The message was taken from another upstream's line to prove this one, and goes back there."""


class Decision(NamedTuple):
    outcome: Outcome
    """The outcome as it counts; the scope of its `pause` tells whether the upstream or the sender rests."""
    fates: Fates
    next: Next
    tried: frozenset[int]
    refusals: int
    back_off_ns: int
    reason: str
    """Why recipients are left; `status` is the enhanced code of the refusal that defers them."""
    status: str


def decide(outcome: Outcome, context: AttemptContext, terms: Terms, shield: Shield) -> Decision:
    """Decide what one outcome means.  Of the arguments only the shield changes."""
    asked = [(index, context.recipients[index]) for index in context.asked]
    outcome = shield.judge(outcome, context.sender, context.queue_id, asked, context.span_ns)
    outcome, age_ns, refusals = _blamed(outcome, context, terms)
    # LATER for every recipient is no progress: the message would be attempted again without end.
    is_only_later = {answer.verdict for answer in outcome.answers} == {Verdict.LATER}
    is_old = age_ns >= terms.lifetime_ns
    fates = {
        index: _fated(answer, is_only_later=is_only_later, is_old=is_old)
        for index, answer in zip(context.asked, outcome.answers, strict=True)
    }
    is_attempted = any(fate is not Fate.WAITING for fate, _ in fates.values())
    deferring = {index: answer for index, (fate, answer) in fates.items() if fate is Fate.DEFERRED}
    still = [index for index in context.left if index not in fates or fates[index][0] not in FINAL]
    tried = frozenset([index for index in still if index in deferring or index in context.tried])
    if not still:
        to_do = Next.FINISH
    elif is_attempted:
        to_do = Next.AGAIN if len(tried) < len(still) else Next.POSTPONE
    else:
        is_often = max(refusals, context.in_a_row + 1) >= REFUSALS_IN_PLACE and not context.is_probe
        is_of_upstream = outcome.pause is not None and outcome.pause.scope is Scope.UPSTREAM
        to_do = Next.POSTPONE if is_often and is_of_upstream else Next.GIVE_BACK
    is_postponed = to_do is Next.POSTPONE and is_attempted
    # Postfix's rule: back off for as long as the message is old, within the limits.
    back_off_ns = max(terms.min_ns, min(terms.max_ns, age_ns)) if is_postponed else terms.min_ns
    because = next(iter(deferring.values()), None if is_attempted else outcome.answers[0])
    return Decision(
        outcome=outcome,
        fates=fates,
        next=to_do,
        tried=frozenset() if is_postponed else tried,
        refusals=refusals,
        back_off_ns=back_off_ns,
        reason=because.text if because is not None else EARLIER if is_postponed else "",
        status=because.status if because is not None else UNKNOWN_STATUS,
    )


def _blamed(outcome: Outcome, context: AttemptContext, terms: Terms) -> tuple[Outcome, int, int]:
    """Return the outcome with the message's own refusals as DEFER, the age of the message, and `refusals`."""
    pause, age_ns, refusals = outcome.pause, context.late_ns - context.either_paused_ns, context.refusals
    if is_any_relayed(outcome):
        return outcome, age_ns, 0
    if pause is None:
        return outcome, age_ns, refusals
    is_evidence = pause.scope is Scope.UPSTREAM and context.is_well
    if refusals < REFUSALS_IN_PLACE or is_evidence:
        refusals += 1
    is_its_own = is_evidence and refusals >= REFUSALS_IN_PLACE + EVIDENT
    if pause.scope is Scope.SENDER and (context.is_sender_alone or pause.ruling == SENDER_WAITS):
        # The sender's rests count as age for this refusal, and for no other.
        with_rests_ns = context.late_ns - context.paused_ns
        if with_rests_ns >= terms.lifetime_ns:
            is_its_own, age_ns = True, with_rests_ns
    if is_its_own:
        outcome = outcome.all_as(Verdict.DEFER, about_us=True)
    return outcome, age_ns, refusals


def _fated(answer: Answer, *, is_only_later: bool, is_old: bool) -> tuple[Fate, Answer]:
    match answer.verdict:
        case Verdict.RELAYED:
            return Fate.RELAYED, answer
        case Verdict.BOUNCE:
            return Fate.BOUNCED, answer
        case Verdict.PAUSE | Verdict.STOP:
            return Fate.WAITING, answer
        case Verdict.LATER if not is_only_later or answer.phase is Phase.MAIL:
            # Other recipients made progress, or the refusal was about us.  At MAIL no recipient was asked
            # about yet: a kept connection had died.
            return Fate.WAITING, answer
    # Silence is no refusal: after the final dot the upstream may even have taken the message.  A refusal of
    # our own (too large for a limit, an unreadable reply) is an answer, unless the connection lacks
    # something.
    is_told = answer.reply is not None or (answer.own_status is not None and not answer.is_unfit)
    if is_old and is_told and not answer.is_doubted:
        # RFC 3463, 3.5: X.4.7 is delivery time expired, whatever the last reply was.
        return Fate.EXPIRED, answer._replace(own_status="5.4.7")
    return Fate.DEFERRED, answer
