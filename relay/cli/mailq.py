"""What sendmail(1) asks about the queue (`-bp`, `-q`), in the form of Postfix' mailq(1) for scripts.

The form is that of Postfix' showq_compat.c with long queue ids.
"""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from relay.cli.locate import asked
from relay.cli.options import Where, printable
from relay.clock import SECOND_NS
from relay.control.operations import NotDone, Session
from relay.status.filters import Filters, Wanted
from relay.status.snapshot import MessageView, QueueState

_HEADER = "----Queue ID----- --Size-- ---Arrival Time---- --Sender/Recipient------"
_MARKS = {QueueState.ACTIVE: "*", QueueState.HELD: "!"}
_REASON_ENDS_AT = 76


def mailq(where: Where) -> Iterator[str]:
    with asked(where) as session:
        whole = [_whole(session, each) for each in session.queue() if each.state is not QueueState.CORRUPT]
    return _lines(whole)


def flush(where: Where) -> None:
    """Have deferred messages tried now."""
    with asked(where) as session:
        session.act(
            "retry", [each.queue_id for each in session.queue(Wanted(Filters(states=(QueueState.DEFERRED,))))]
        )


def _whole(session: Session, message: MessageView) -> MessageView:
    """Return a message with all its recipients: a listing has only the first."""
    if len(message.recipients) < message.recipients_left:
        with contextlib.suppress(NotDone):
            return session.show(message.queue_id)
    return message


def _lines(messages: Sequence[MessageView]) -> Iterator[str]:
    if not messages:
        yield "Mail queue is empty"
        return
    yield _HEADER
    for message in messages:
        arrival = datetime.fromtimestamp(message.arrival_at_ns // SECOND_NS, UTC).astimezone()
        name = message.queue_id + _MARKS.get(message.state, "")
        sender = printable(message.reverse_path) or "MAILER-DAEMON"
        yield f"{name:<17} {message.size_bytes:8} {arrival:%a %b} {arrival.day:2} {arrival:%H:%M:%S} {sender}"
        if message.reason:
            yield f"({printable(message.reason)})".rjust(_REASON_ENDS_AT)
        for recipient in message.recipients:
            yield f"{'':<17} {'':>8} {'':19} {printable(recipient)}"
        yield ""
    kilobytes = (sum(message.size_bytes for message in messages) + 1023) // 1024
    yield f"-- {kilobytes} Kbytes in {len(messages)} Request{'s' * (len(messages) != 1)}."
