"""What sendmail(1) asks about the queue (`-bp`, `-q`), in the form of Postfix' mailq(1) for scripts.

The form is that of Postfix' showq_compat.c with long queue ids.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from relay.cli.locate import ask
from relay.cli.options import Where, printable
from relay.clock import SECOND_NS
from relay.control.operations import Session
from relay.status.snapshot import MessageView, QueueState

_HEADER = "----Queue ID----- --Size-- ---Arrival Time---- --Sender/Recipient------"
_MARKS = {QueueState.ACTIVE: "*", QueueState.HELD: "!"}
_REASON_ENDS_AT = 76


def mailq(where: Where) -> Iterator[str]:
    return _lines(ask(where, _listed))


def flush(where: Where) -> None:
    """Have deferred messages tried now."""

    async def retry(session: Session) -> None:
        deferred = [each.queue_id for each in await session.queue() if each.state is QueueState.DEFERRED]
        if deferred:
            await session.act("retry", deferred)

    ask(where, retry)


async def _listed(session: Session) -> list[MessageView]:
    """Return all messages with all their recipients: a listing has only the first."""
    found: list[MessageView] = []
    for message in await session.queue():
        if message.state is not QueueState.CORRUPT:
            is_whole = len(message.recipients) >= message.recipients_left
            shown = message if is_whole else await session.show(message.queue_id)
            found.append(message if isinstance(shown, str) else shown)
    return found


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
