"""Moves a spool from one engine to another, offline: `relay spool convert`.

The new spool is built in SPOOL/converting, from what a start of the old engine reads, and its pieces are
moved beside those of the old one, where no engine looks for them.  Then `format` is replaced: that one
rename makes the spool one of the new engine.  What all engines share (lock, trigger, boots, reports,
reserve, corrupt/) stays where it is.

| crash                         | on disk                            | recovery                            |
| ----------------------------- | ---------------------------------- | ----------------------------------- |
| while it is built, or moved   | the old spool, some of a new one   | a start goes by the old; built anew |
| `format` being replaced       | one or the other                   | as above, or as below               |
| until the old pieces are gone | the new spool, pieces of the old   | no start; the next call goes on     |

Guarantees: a message is in the new spool durably before `format` is replaced, and a message that a listener
which outlived its relay brought meanwhile before the old pieces go: what is in the old spool and not in the
new one by then is adopted too.  Killed at any step and called again, it goes on.
Assumes: the spool's lock can be had, so no relay runs.  Does not: convert what is in corrupt/, which stays.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from relay.clock import Clock
from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import put_in_place
from relay.spool.engines import CONVERTING, ENGINES, Engine, OnCorrupt, engine_of, is_half_converted
from relay.spool.faults import faults
from relay.spool.interface import (
    INLINE_BYTES,
    Absent,
    Adopted,
    Corrupt,
    LedgerAccount,
    Message,
    Spool,
    SpoolBusy,
    SpoolFull,
    Unreadable,
)
from relay.spool.root.quarantine import corrupt_folder, set_aside

AT_ONCE = 256
"""Messages that share their syncs."""
BYTES_AT_ONCE = 64 * INLINE_BYTES
_TRIES = 100
_BETWEEN_TRIES_S = 0.1


@dataclass(slots=True)
class CarriedOver:
    """What was brought from one spool into another."""

    messages: int = 0
    recipients: int = 0
    """Those to do."""
    held: int = 0
    set_aside: int = 0
    """Messages that turned out to be damaged, and are in corrupt/ now."""


@dataclass(frozen=True, slots=True)
class Converted:
    was: str
    """The engine that the spool was of; the new one, where only the end of an earlier call was missing."""
    now: str
    carried: CarriedOver
    late: int
    """Messages that came in while it was at work."""


class Leftover(Exception):  # noqa: N818 - a state of the disk
    """Some files of the spool cannot be read now; the text says how many."""


def convert(
    root: str,
    target: str,
    disk: Disk,
    clock: Clock,
    on_corrupt: OnCorrupt,
    *,
    on_step: Callable[[], None] = lambda: None,
    wait: Callable[[float], None] = time.sleep,
) -> Converted:
    """Raise SpoolBusy where a relay or a listener runs, SpoolFull, SpoolFault, Leftover, OSError, ValueError.

    FileNotFoundError where there is no spool.  `on_step` is called for each message or so.
    """
    if target not in ENGINES:
        raise ValueError(f"this relay has no engine {target}")
    work = _Work(root, disk, clock, on_corrupt, on_step=on_step, wait=wait)
    late = 0
    if is_half_converted(root, disk):
        with faults("conversion"):
            late = work.empty_the_old()
    found = engine_of(root, disk)
    if found is None:
        raise FileNotFoundError(2, "no spool is here", root)
    if found == target:
        # What a call for another engine left.
        work.forget_what_was_built()
        return Converted(found, target, CarriedOver(), late)
    with faults("conversion"):
        carried = work.build(ENGINES[found], ENGINES[target])
        late += work.empty_the_old()
    return Converted(found, target, carried, late)


def carry_over(
    source: Spool,
    target: Spool,
    queue_ids: Sequence[QueueId],
    account: Callable[[], LedgerAccount | None],
    on_step: Callable[[], None] = lambda: None,
) -> CarriedOver:
    """Put messages of one spool into another, durably.  Raises what either raises, and Leftover.

    `account` is asked at the end, when it is known which messages were damaged.
    """
    carried = CarriedOver()
    for messages in _batches(_loaded(source, queue_ids, carried, on_step)):
        _adopt(source, target, messages, carried)
        target.commit()
    target.adopt([], account())
    target.commit()
    return carried


def _loaded(
    source: Spool, queue_ids: Sequence[QueueId], carried: CarriedOver, on_step: Callable[[], None]
) -> Iterator[Message]:
    for queue_id in queue_ids:
        on_step()
        try:
            yield source.load(queue_id)
        except Corrupt:
            carried.set_aside += 1
        except Unreadable as error:
            raise Leftover(f"{queue_id} cannot be read now: {error.strerror}") from error


def _batches(messages: Iterator[Message]) -> Iterator[list[Message]]:
    batch: list[Message] = []
    size_bytes = 0
    for message in messages:
        batch.append(message)
        size_bytes += min(message.shape.size_bytes, INLINE_BYTES)
        if len(batch) == AT_ONCE or size_bytes > BYTES_AT_ONCE:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _adopt(source: Spool, target: Spool, messages: Sequence[Message], carried: CarriedOver) -> None:
    try:
        target.adopt([_adopted(source, message) for message in messages])
    except (Absent, Corrupt):
        # Long content that is damaged: whoever read it first has set it aside.
        if len(messages) == 1:
            carried.set_aside += 1
            return
        for message in messages:
            _adopt(source, target, [message], carried)
    else:
        carried.messages += len(messages)
        carried.recipients += sum(len(message.left) for message in messages)
        carried.held += sum(message.is_held for message in messages)


def _adopted(source: Spool, message: Message) -> Adopted:
    content = _content(source, message.queue_id) if message.content is None else iter([message.content])
    return Adopted(message, source.notes(message.queue_id), content)


def _content(source: Spool, queue_id: QueueId) -> Iterator[bytes]:
    try:
        yield from source.content(queue_id)
    except Unreadable as error:
        # It says nothing about the disk of the spool that is written to.
        raise Leftover(f"{queue_id} cannot be read now: {error.strerror}") from error


class _Work:
    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        on_corrupt: OnCorrupt,
        *,
        on_step: Callable[[], None],
        wait: Callable[[float], None],
    ) -> None:
        self._root = root
        self._new = f"{root}/{CONVERTING}"
        self._old = f"{root}/{CONVERTING}/old"
        self._gone = f"{root}/{CONVERTING}/gone"
        self._disk = disk
        self._clock = clock
        self._on_corrupt = on_corrupt
        self._on_step = on_step
        self._wait = wait

    def build(self, source_engine: Engine, target_engine: Engine) -> CarriedOver:
        """Build the new spool, and make it the one that counts."""
        root, disk = self._root, self._disk
        source = source_engine.spool(root, disk, self._clock, self._on_corrupt)
        try:
            if source_engine.has_writers(root, disk):
                raise SpoolBusy(f"a listener still takes mail into {root}")
            queue_ids = self._read(source)
            queue_ids += _taken(source)
            self._refuse_leftovers(source, root)
            # Of an earlier call that was cut off.
            self._remove_built(target_engine)
            try:
                with faults("conversion"):
                    carried = self._build(source, target_engine, queue_ids)
                    # What is damaged and could not be set aside is in the old spool alone.
                    self._refuse_leftovers(source, root)
                    # What was set aside meanwhile is not met again when the old spool is looked through.
                    source.commit()
            except (SpoolFull, Leftover):
                # The old spool needs the room.
                self._remove_built(target_engine)
                raise
            # Crash here: the old spool, and a new one that no engine looks for.
            self._move(target_engine.pieces, self._new, root)
            with opened(disk, put_in_place(disk, f"{root}/format", target_engine.format)):
                pass
            # Crash here: the new spool; what is left of the old one is adopted or in the new one already.
        finally:
            source.close()
        return carried

    def _build(self, source: Spool, engine: Engine, queue_ids: Sequence[QueueId]) -> CarriedOver:
        engine.prepare(self._new, self._disk)
        target = engine.spool(self._new, self._disk, self._clock, self._on_corrupt)
        try:
            self._read(target)
            return carry_over(source, target, queue_ids, source.account, self._on_step)
        finally:
            target.close()

    def _remove_built(self, engine: Engine) -> None:
        for name in (CONVERTING, *engine.pieces):
            self._remove(f"{self._root}/{name}")
        self._disk.sync_directory(self._root)

    def empty_the_old(self) -> int:
        """Adopt what came in late, and remove what the spool was; return how many messages came."""
        root, disk = self._root, self._disk
        engine = ENGINES[engine_of(root, disk) or ""]
        target = engine.spool(root, disk, self._clock, self._on_corrupt)
        late = 0
        try:
            there = set(self._read(target))
            for source_engine in ENGINES.values():
                if source_engine is not engine:
                    late += self._adopt_late(source_engine, target, there)
            # Under another name: no later call reads what is half removed.
            self._remove(self._gone)
            if self._is_there(self._old):
                disk.rename(self._old, self._gone)
                disk.sync_directory(self._new)
            self.forget_what_was_built()
        finally:
            target.close()
        return late

    def forget_what_was_built(self) -> None:
        if not self._is_there(self._new):
            return
        found = engine_of(self._root, self._disk)
        for name in [piece for each, engine in ENGINES.items() if each != found for piece in engine.pieces]:
            # Moved beside those that count, by a conversion that went no further.
            self._remove(f"{self._root}/{name}")
        for name in self._disk.names(self._new):
            if name != "format":
                self._remove(f"{self._new}/{name}")
        # Its format last: until then a start would be refused, as one that is half converted.
        self._remove(self._new)
        self._disk.sync_directory(self._root)

    def _adopt_late(self, engine: Engine, target: Spool, there: set[QueueId]) -> int:
        """Take the old pieces out of every listener's reach, and look through them once more."""
        root, disk = self._root, self._disk
        places = [f"{folder}/{piece}" for folder in (root, self._old) for piece in engine.pieces]
        if not any(map(self._is_there, places)):
            return 0
        disk.make_directory(self._old)
        if not self._is_there(f"{self._old}/format"):
            with opened(disk, put_in_place(disk, f"{self._old}/format", engine.format)):
                pass
        # From here on a listener finds no folder for what it would accept, and answers 451.
        self._move(engine.pieces, root, self._old)
        self._await(lambda: not engine.has_writers(self._old, disk))
        source = engine.spool(self._old, disk, self._clock, self._on_corrupt)
        try:
            queue_ids = self._read(source)
            self._await(lambda: self._take_all(source, queue_ids))
            late = [queue_id for queue_id in queue_ids if queue_id not in there]
            self._refuse_leftovers(source, self._old)
            if late:
                carry_over(source, target, late, lambda: None, self._on_step)
                self._refuse_leftovers(source, self._old)
            for name in disk.names(corrupt_folder(self._old)):
                set_aside(disk, root, f"{corrupt_folder(self._old)}/{name}")
            disk.sync_directory(corrupt_folder(root))
        finally:
            source.close()
        return len(late)

    def _read(self, spool: Spool) -> list[QueueId]:
        """Return the ids alone: what else is known of a million messages is a gigabyte.

        Raise SpoolFull where descriptors or memory lack for long.
        """
        queue_ids, tries = list[QueueId](), 0
        for batch in spool.recover(on_step=self._on_step):
            queue_ids += [entry.queue_id for entry in batch]
            tries = 0 if batch else tries + 1
            if tries > _TRIES:
                raise SpoolFull("conversion: descriptors or memory lack, and the spool cannot be read")
            if not batch:
                self._wait(_BETWEEN_TRIES_S)
        return queue_ids

    @staticmethod
    def _take_all(source: Spool, queue_ids: list[QueueId]) -> bool:
        """Take what is accepted; return whether nothing is left that may still be taken back."""
        queue_ids += _taken(source)
        return source.accepted_count() == 0

    def _await(self, is_so: Callable[[], bool]) -> None:
        for _ in range(_TRIES):
            if is_so():
                return
            self._wait(_BETWEEN_TRIES_S)
        raise SpoolBusy(f"a listener still takes mail into {self._root}: stop it, and call this again")

    def _refuse_leftovers(self, source: Spool, root: str) -> None:
        left = source.corrupt_count() - len(self._disk.names(corrupt_folder(root)))
        if left > 0:
            raise Leftover(f"{left} files of {root} cannot be read now: `relay fsck` names them")

    def _move(self, names: Sequence[str], source: str, target: str) -> None:
        for name in names:
            if self._is_there(f"{source}/{name}"):
                self._disk.rename(f"{source}/{name}", f"{target}/{name}")
        # The new names first, as everywhere.
        self._disk.sync_directory(target)
        self._disk.sync_directory(source)

    def _is_there(self, path: str) -> bool:
        try:
            return self._disk.inode(path) is not None
        except FileNotFoundError:
            return False  # nor is its folder

    def _remove(self, path: str) -> None:
        """Remove a file, or a folder with all in it; fine if it is not there."""
        self._on_step()
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            for name in self._disk.names(path):
                self._remove(f"{path}/{name}")
            self._disk.remove_directory(path)


def _taken(source: Spool) -> Iterator[QueueId]:
    """Take all that can be taken."""
    taken = itertools.chain.from_iterable(iter(lambda: source.take(AT_ONCE), []))
    return (entry.queue_id for entry in taken)
