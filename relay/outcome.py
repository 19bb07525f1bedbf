"""What one attempt came to, as a value.  Pure.

What a remote host says is never an exception: an `Outcome` holds one `Answer` for each
recipient that was asked for, in the same order, whatever happened on the wire.
"""

from dataclasses import dataclass

from relay.reply import Phase, Reply
from relay.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Answer:
    """What the upstream, or its silence, says of one recipient or of the connection."""

    verdict: Verdict
    phase: Phase
    reply: Reply | None
    """None where no proper reply came: lost, late, malformed, or not asked."""
    text: str
    """What to show: the reply, or what went wrong; printable ASCII on one line."""
    own_status: str | None = None
    """The enhanced code where we refuse without asking the upstream, such as 5.3.4."""

    @property
    def status(self) -> str:
        """Return the enhanced status code (RFC 3463) for the log and for a report."""
        if self.own_status is not None:
            return self.own_status
        if self.reply is not None and self.reply.enhanced is not None:
            return self.reply.enhanced
        match self.verdict:
            case Verdict.RELAYED:
                return "2.0.0"
            case Verdict.BOUNCE:
                return "5.0.0"
            case _:
                # RFC 3463, 3.5: 4.4.2 is a bad connection, which is what a missing reply is.
                return "4.4.2" if self.reply is None else "4.0.0"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One transaction, seen from its end."""

    answers: tuple[Answer, ...]
    """One for each recipient of the transaction, in its order."""
    is_ambiguous: bool = False
    """The final dot went out and no proper reply came back: it may have been relayed."""
    pause: Answer | None = None
    """Set where the refusal was about us or the upstream, and it should rest."""
