"""The result of one attempt, as a value.  Pure.

What a remote host sends never raises an exception.  An `Outcome` holds one `Answer` for each recipient that
was asked for, in the same order, whatever happened on the wire.
"""

from typing import NamedTuple

from relay.smtp.reply import Phase, Reply
from relay.verdicts.verdict import ABOUT_US, Layer, Ruling, Scope, Verdict


class Answer(NamedTuple):
    """The answer of the upstream, or its silence, for one recipient or for the connection."""

    verdict: Verdict
    phase: Phase
    reply: Reply | None
    """None without a proper reply: it was lost, late or malformed, or no command was sent."""
    text: str
    """The reply or the failure, to show; printable ASCII on one line."""
    own_status: str | None = None
    """The enhanced code if it is ours: we refuse without asking the upstream (5.3.4), or cannot read its
    reply (4.5.0)."""
    is_unfit: bool = False
    """This connection cannot carry the message; another one to the same upstream may."""
    ruling: Ruling | None = None
    """How the verdict was reached, and when to go on; None if no rule was asked."""
    is_doubted: bool = False
    """The shield doubts this recipient for the first time: the refusal is not believed, and cannot expire
    the recipient."""
    is_unproven: bool = False
    """A permanent refusal by its ruling, but deferred: the upstream hung up behind it, so nobody knows
    whether it answered its own command."""

    @property
    def is_about_us(self) -> bool:
        """Return whether it is a refusal by the upstream that says nothing about the message."""
        return self.verdict in ABOUT_US

    @property
    def scope(self) -> Scope:
        if self.ruling is not None:
            return self.ruling.scope
        return Scope.UPSTREAM if self.is_about_us else Scope.RECIPIENT

    @property
    def status(self) -> str:
        """Return the enhanced status code (RFC 3463) for the log and for a report.

        Its class is that of the verdict.  A report `delayed` with status 5.2.1 would be read as a failure,
        and would unsubscribe a recipient that only receives too much just now.
        """
        its_class = {Verdict.RELAYED: "2", Verdict.BOUNCE: "5"}.get(self.verdict, "4")
        if self.own_status is not None:
            return its_class + self.own_status[1:] if self.is_unfit else self.own_status
        if self.reply is not None and self.reply.enhanced is not None:
            # A refusal about us keeps its class: no report is made of it.
            return self.reply.enhanced if self.is_about_us else its_class + self.reply.enhanced[1:]
        # RFC 3463, 3.5: 4.4.2 is a bad connection, which is what a missing reply is.
        return "4.4.2" if self.reply is None and its_class == "4" else f"{its_class}.0.0"


class Outcome(NamedTuple):
    answers: tuple[Answer, ...]
    """One for each recipient of the transaction, in its order."""
    is_ambiguous: bool = False
    """The final dot was sent and no proper reply came: the upstream may have relayed it."""
    is_over: bool = True
    """The upstream is done with it: it answered everything, or hung up before the final dot.  False: it may
    still be counting, at most until the transaction's deadline."""
    is_dsn_refused: bool = False
    """The upstream refused DSN parameters, although it had offered DSN; this bounces no recipient."""

    @property
    def pause(self) -> Answer | None:
        """Return the gravest answer about us, for which the upstream or the sender rests; else None.

        A stop is graver than a pause, and one of the upstream graver than one of the sender.
        """
        about_us = [answer for answer in self.answers if answer.verdict in ABOUT_US]
        if not about_us:
            return None  # the usual case
        return min(
            about_us, key=lambda each: (each.verdict is not Verdict.STOP, each.scope is not Scope.UPSTREAM)
        )

    def all_as(self, verdict: Verdict, *, about_us: bool = False) -> "Outcome":
        """Return a copy in which all answers, or those about us, have another verdict."""
        answers = [
            answer._replace(verdict=verdict, ruling=None) if answer.is_about_us or not about_us else answer
            for answer in self.answers
        ]
        return self._replace(answers=tuple(answers))


def is_any_relayed(outcome: Outcome) -> bool:
    return Verdict.RELAYED in [answer.verdict for answer in outcome.answers]


def of_full_session(outcome: Outcome) -> Outcome | None:
    """Return the outcome that counts if MAIL was refused because the session is full; else None.

    Assumes that the session relayed mail.  The recipients go in the next session, at once.  Also None if the
    owner's rule decided, or if the reply or its rule names a wait or a window: then the refusal is about us.
    """
    refusal, ruling = outcome.answers[0], outcome.answers[0].ruling
    is_refused = refusal.reply is not None and refusal.reply.code in (421, 452)
    if refusal.phase is not Phase.MAIL or not is_refused or ruling is None:
        return None
    is_about_us = ruling.wait_ns is not None or ruling.window_ns is not None or ruling.layer is Layer.OPERATOR
    if is_about_us or ruling.verdict not in (Verdict.PAUSE, Verdict.DEFER) or ruling.scope is Scope.SENDER:
        return None
    return outcome.all_as(Verdict.LATER)


def is_about_dsn(reply: Reply) -> bool:
    """Return whether a refusal of a command with DSN parameters may be about these, not about the address."""
    # RFC 5321, 4.1.1.11 and 4.2.4; 500 for a line that is too long.  RFC 3463, 3.6: X.5.z is about the
    # protocol; X.1.z would be about the address.
    return reply.code in {500, 501, 504, 555} and (reply.enhanced is None or reply.enhanced[1:4] == ".5.")
