"""Converts a spool from one engine to another: copies it, compares the copy, and switches to the copy.

| crash                        | on the disk                           | afterwards                         |
| ---------------------------- | ------------------------------------- | ---------------------------------- |
| during copy or comparison    | the old spool, part of the new one    | the old spool is in force; the     |
|                              | in `converting/` or beside the old    | next call starts again             |
| while `format` is replaced   | the old `format` or the new one       | the row above, or the row below    |
| while the old one is removed | the new spool, pieces of the old one  | the new spool is in force; the     |
|                              |                                       | next call removes the pieces       |

Guarantees: no message is lost or changed, whichever call a crash interrupts.  Out of a database, all messages
are converted, or none if another host may own some.  No host sends messages that were copied into a database
before that copy is in force.  If a conversion out of a database fails before `keep_claims`, any host may
claim the messages at once; if it is killed, once its lease has ended.
Assumes: nobody owns the queue and no intake is open.  Holds both locks meanwhile.
Does not: convert damaged messages; they stay in corrupt/, or set aside in the database.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import cast

from relay.clock import Clock
from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import replace_file
from relay.spool.engines import ENGINES, Engine, engine_of
from relay.spool.errors import kernel_errors
from relay.spool.interface import Adopted, Message, SharedSpool, Spool, Unavailable, WrongSpool
from relay.spool.root.lock import lock_out_intakes
from relay.spool.root.quarantine import OnCorrupt

CONVERTING = "converting"
AT_ONCE = 256
"""Messages of a page; they share their syncs."""


@dataclass(slots=True)
class Converted:
    was: str
    """The old engine."""
    now: str
    messages: int = 0
    recipients: int = 0
    """Recipients that are still to do."""
    held: int = 0


def convert(
    root: str,
    target: str,
    disk: Disk,
    clock: Clock,
    on_corrupt: OnCorrupt,
    *,
    engines: Mapping[str, Engine] = ENGINES,
) -> Converted:
    """Convert the spool in `root`.  Raises SpoolBusy if a relay or a listener runs.

    Raises FileNotFoundError if there is no spool, and Full, Unavailable, OSError and WrongSpool.
    """
    if (found := engine_of(root, disk)) is None:
        raise FileNotFoundError(2, "no spool is here", root)
    for name in (found, target):
        if name not in engines:
            raise WrongSpool(f"unknown engine {name}, or the policy has no database for it")
    with kernel_errors("conversion"), opened(disk, lock_out_intakes(root, disk)):
        old, new = engines[found], f"{root}/{CONVERTING}"
        done = Converted(found, target)
        with closing(old.spool(root, disk, clock, on_corrupt)) as source:
            # Remove what an interrupted call left, of any engine.
            _remove(disk, new)
            for each in engines.values():
                if each is not old:
                    _remove_pieces(each, root, disk)
            if found != target:
                with ExitStack() as undoing:
                    undoing.callback(engines[target].remove_leftovers, root, disk)
                    engines[target].prepare(new, disk)
                    open_copy = partial(engines[target].spool, new, disk, clock, _nothing_is_damaged)
                    with closing(open_copy()) as copy:
                        queue_ids = _copy(source, copy, done)
                    if source.look().unclaimed:
                        raise Unavailable(f"some messages of {root} cannot be read now")
                    with closing(open_copy()) as copy:
                        _compare_all(source, copy, queue_ids)
                    if source.is_shared:
                        cast(SharedSpool, source).keep_claims()
                    undoing.pop_all()
                _count(root, engines[target], disk)
                # Crash here: the new spool is in force; the next call removes the pieces of the old one.
                _remove_pieces(old, root, disk)
                engines[target].release_claims(root, disk)
    return done


def _copy(source: Spool, copy: Spool, done: Converted) -> list[QueueId]:
    queue_ids = []
    for page in _pages(source):
        with ExitStack() as files:
            contents = [files.enter_context(closing(_content(source, message))) for message in page]
            copy.adopt([Adopted(*each) for each in zip(page, contents, strict=True)])
        queue_ids += [message.queue_id for message in page]
        done.messages += len(page)
        done.recipients += sum(len(message.left) for message in page)
        done.held += sum(message.is_held for message in page)
    return queue_ids


def _compare_all(source: Spool, copy: Spool, queue_ids: Sequence[QueueId]) -> None:
    compared: list[QueueId] = []
    for page in _pages(copy):
        source.look()  # renews the lease if the source is a database
        _compare(source, copy, page)
        compared += [message.queue_id for message in page]
    if compared != queue_ids:
        raise Unavailable("the copy has other messages than the spool; the old spool stays in force")


def _compare(source: Spool, target: Spool, page: Sequence[Message]) -> None:
    queue_ids = [message.queue_id for message in page]
    for queue_id, was, now in zip(queue_ids, source.read(queue_ids), target.read(queue_ids), strict=True):
        # An engine need not return the hint of the next attempt from `read`, only from `claim`.
        if not (
            isinstance(was, Message)
            and isinstance(now, Message)
            and was == now._replace(next_attempt_at_ns=was.next_attempt_at_ns)
            and (now.content is not None or [*source.content(queue_id)] == [*target.content(queue_id)])
        ):
            raise Unavailable(f"message {queue_id} differs in the copy; the old spool stays in force")


def _count(root: str, engine: Engine, disk: Disk) -> None:
    """Switch to the copy: move its pieces beside the old ones, then replace `format`."""
    new = f"{root}/{CONVERTING}"
    for name in engine.pieces:
        disk.rename(f"{new}/{name}", f"{root}/{name}")
    disk.sync_directory(root)
    # Crash here: the old spool is in force; no engine reads the new pieces.
    replace_file(disk, f"{root}/format", engine.format)
    _remove(disk, new)


def _pages(spool: Spool) -> Iterator[list[Message]]:
    return iter(lambda: spool.claim(AT_ONCE), [])


def _content(source: Spool, message: Message) -> Generator[bytes, None, None]:
    if message.content is None:
        yield from source.content(message.queue_id)
    else:
        yield message.content


def _nothing_is_damaged(name: str, why: str) -> None:
    raise Unavailable(f"the copy of {name} is damaged: {why}; the old spool stays in force")


def _remove_pieces(engine: Engine, root: str, disk: Disk) -> None:
    for name in engine.pieces:
        _remove(disk, f"{root}/{name}")
    disk.sync_directory(root)
    engine.remove_leftovers(root, disk)


def _remove(disk: Disk, path: str) -> None:
    """Remove a file, or a folder with all in it; fine if it is not there."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        for name in disk.names(path):
            _remove(disk, f"{path}/{name}")
        disk.remove_directory(path)
