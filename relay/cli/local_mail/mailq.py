"""The queue as Postfix' mailq(1) prints it, for the scripts that read that.  Pure.

The form is that of Postfix' showq_compat.c with long queue ids.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from relay.cli.options import printable
from relay.clock import SECOND_NS
from relay.status.snapshot import MessageView, QueueState

EMPTY = "Mail queue is empty"
_HEADER = "----Queue ID----- --Size-- ---Arrival Time---- --Sender/Recipient------"
_MARKS = {QueueState.ACTIVE: "*", QueueState.HELD: "!"}
_REASON_ENDS_AT = 76


def mailq_lines(messages: Sequence[MessageView]) -> Iterator[str]:
    if not messages:
        yield EMPTY
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
