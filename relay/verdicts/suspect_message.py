"""Whether a refusal about us is evidently about one message, or one sender.  Pure.

An upstream may say `421`, speak of a limit, or deny relaying, because of something in one
message.  Taken at its word each time, that message keeps everybody waiting and never grows
old.  So:

- the first refusals of a message always pause or stop the upstream, and so does each that comes
  while the upstream is in doubt: it has relayed nothing since it last refused us;
- a message that was refused `REFUSALS_IN_PLACE` times lets the others prove the upstream
  (`relay.queue.scheduler.Scheduler.doubt`);
- after `EVIDENT` more refusals, each of them where the upstream had just relayed others,
  such a refusal is the message's own: an attempt, with its back-off, until its lifetime.

Likewise a sender whose mail waits: after `EVIDENT` refusals in a row, each after others had
been relayed, a message of it that is older than its lifetime, rests included, is returned.

Where everybody is refused (a quota, a block) nothing is relayed in between, so nothing is
evident, however long it lasts.  What is known of a message is lost at a restart: then its
next refusals pause again.
"""

from dataclasses import replace

from relay.verdicts.outcome import Outcome
from relay.verdicts.verdict import Scope, Verdict

REFUSALS_IN_PLACE = 3
"""A message that met so many refusals about us in its transactions lets the others go first."""
EVIDENT = 3
"""So many refusals between others that were relayed are no chance."""


def pauses_upstream(outcome: Outcome) -> bool:
    """Return whether an outcome may be one message's own fault, told as if it were everybody's."""
    pause = outcome.pause
    if pause is None or pause.scope is not Scope.UPSTREAM:
        return False
    # What the shield doubts is the operator's to judge, however often.
    return pause.verdict is Verdict.PAUSE or (pause.verdict is Verdict.STOP and not pause.is_doubted)


def pauses_sender(outcome: Outcome) -> bool:
    """Return whether an outcome refuses a sender, and nothing of its message went through."""
    pause = outcome.pause
    is_refused = pause is not None and pause.verdict is Verdict.PAUSE and pause.scope is Scope.SENDER
    return is_refused and not is_any_relayed(outcome)


def is_singled_out(outcome: Outcome, refusals: int, *, is_well: bool) -> bool:
    """Return whether this refusal, by itself, is more likely about the message than about us.

    `refusals` is how often it was refused like that before; `is_well` says that the
    upstream relayed others since it last refused anybody.
    """
    is_refused = pauses_upstream(outcome) and not is_any_relayed(outcome)
    return is_refused and is_well and refusals >= REFUSALS_IN_PLACE


def as_its_own(outcome: Outcome) -> Outcome:
    """Return an outcome whose refusals about us are the message's own."""
    answers = tuple(
        replace(answer, verdict=Verdict.DEFER, ruling=None) if answer.is_about_us else answer
        for answer in outcome.answers
    )
    return replace(outcome, answers=answers, pause=None)


def is_any_relayed(outcome: Outcome) -> bool:
    """Return whether some of it went through."""
    return any(answer.verdict is Verdict.RELAYED for answer in outcome.answers)
