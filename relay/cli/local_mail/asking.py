"""What sendmail(1) asks about the queue (`-bp`, `-q`): the relay, or its spool, as `relay queue` does."""

from collections.abc import Iterator
from typing import Any

from relay.cli.local_mail.mailq import mailq_lines
from relay.cli.locate import Where
from relay.cli.operate import ask
from relay.control.operations import Session
from relay.status.snapshot import MessageView, QueueState


def mailq(where: Where) -> Iterator[str]:
    return mailq_lines(ask(where, _listed))


def flush(where: Where) -> tuple[()]:
    """Have deferred messages tried now; there is nothing to print."""
    ask(where, _flush)
    return ()


async def _listed(session: Session) -> list[MessageView]:
    """Return all messages with all their recipients: a listing has only the first."""
    listed = [each for each in await session.queue() if each.state is not QueueState.CORRUPT]
    found: list[MessageView] = []
    for message in listed:
        is_whole = len(message.recipients) >= message.recipients_left
        shown: Any = message if is_whole else await session.show(message.queue_id)
        found.append(shown if isinstance(shown, MessageView) else message)
    return found


async def _flush(session: Session) -> None:
    deferred = [each.queue_id for each in await session.queue() if each.state is QueueState.DEFERRED]
    if deferred:
        await session.act("retry", deferred)
