"""Messages of another spool, put into this one with all that is known of them.

A message is written as a report is, and all that became of it since as one record behind it, in the same
group.  Long content is durable before that, in a file that a start removes where the group is not there.
Does not: write to the stream (`journal`).
"""

from collections.abc import Iterable, Mapping

from relay.mail.envelope import QueueId
from relay.spool.durable import Disk
from relay.spool.interface import Account, Adopted, Message, Status, Totals
from relay.spool.log import facts as said
from relay.spool.log.content import LongContent
from relay.spool.log.facts import Facts
from relay.spool.log.record import LONG, MESSAGE, New
from relay.spool.maildir import message_file, notes


def record_of(adopted: Adopted, disk: Disk, long: LongContent) -> New:
    """Return the record of a message.  Raises OSError, and what reading its content raises."""
    message = adopted.message
    recipients = len(message.envelope.recipients)
    tail = message_file.encode_envelope(message.queue_id, message.envelope)
    if message.content is not None:
        content = b"".join(adopted.content)
        header = _header(message, tail, len(content), message_file.checksum(content))
        return New(MESSAGE, message.queue_id, b"".join((header, content, tail)), recipients)
    # What an earlier call left is of a message that is not here.
    long.discard(message.queue_id, None)
    fd = long.create(message.queue_id)
    try:
        crc = size_bytes = 0
        for chunk in adopted.content:
            disk.write_all(fd, chunk)
            crc = message_file.checksum(chunk, crc)
            size_bytes += len(chunk)
        long.complete(fd, _header(message, tail, size_bytes, crc), b"", size_bytes, tail)
        disk.sync(fd)
        long.name(message.queue_id)
        long.sync_names()
    except BaseException:
        long.discard(message.queue_id, fd)
        raise
    # Crash here: content without a record, which the next start removes.
    long.let_go(fd)
    return New(LONG, message.queue_id, b"", recipients)


def facts_of(adopted: Adopted) -> New | None:
    """Return all that became of a message as one record; None where nothing did."""
    message, facts = adopted.message, Facts()
    facts.statuses = {i: status for i, status in enumerate(message.statuses) if status is not Status.TODO}
    facts.told = set(message.reported)
    facts.is_held, facts.is_warned = message.is_held, message.is_warned
    facts.next_attempt_at_ns = message.next_attempt_at_ns or 0
    told = notes.encode(notes.retold(adopted.notes)) if adopted.notes else b""
    if not (facts.snapshot() or told):
        return None
    return New(said.SNAPSHOT, message.queue_id, said.encode_snapshot(facts, told))


def account_of(account: said.Account, facts: Mapping[QueueId, Facts]) -> Account:
    ended = Totals(account.ended, account.relayed, account.bounced, account.expired, account.deleted)
    gone = frozenset(QueueId(report) for each in facts.values() for report in each.closed)
    return Account(ended, gone, dict(account.aside or {}))


def records_of(account: Account, mine: said.Account) -> Iterable[New]:
    """Return what says that another spool's account goes on here."""
    ended = account.ended
    together = said.Account(
        mine.relayed + ended.relayed,
        mine.bounced + ended.bounced,
        mine.expired + ended.expired,
        mine.deleted + ended.deleted,
        {**(mine.aside or {}), **account.aside},
    )
    yield New(said.ACCOUNT, "", together.encode())
    for report in sorted(account.reports_gone):
        yield New(said.GONE, report)


def _header(message: Message, tail: bytes, size_bytes: int, crc: int) -> bytes:
    recipients = len(message.envelope.recipients)
    return message_file.encode_header(size_bytes, tail, recipients, message.shape, crc)
