"""Looks at a whole log and says what is not as it should be; changes nothing.

Guarantees: takes no lock, writes nothing, follows no link, so it may run beside a sender and its listeners.
Every record is compared with its checksums.  What is written or removed meanwhile is not told of as damage:
of a stream whose writer lives only what it announced is read.  Raises OSError where a folder cannot be read.
Does not: repair.  A start does that, as each finding says.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_not_now
from relay.spool.finding import STOPS_THE_START, Inspection, unreadable
from relay.spool.identity import is_queue_id
from relay.spool.inspecting import ASIDE, LOOK, RootInspector, kind_of
from relay.spool.interface import Corrupt
from relay.spool.log import recovery
from relay.spool.log.index import LogIndex
from relay.spool.log.layout import (
    FORMAT,
    SENDER,
    LogLayout,
    SegmentName,
    draft_of,
    segment_of,
    stream_of,
    summary_of,
)
from relay.spool.log.record import HEADER_BYTES, LONG, MESSAGES, MOVED_LONG
from relay.spool.log.segments import Segments, place_of
from relay.spool.log.stream_reader import Damage, ReadGroup, groups
from relay.spool.log.stream_writer import POSITION_BYTES, Position, decode_position
from relay.spool.log.streams import OnDamage, read_header
from relay.spool.message import files
from relay.spool.root import foreign
from relay.spool.root.quarantine import subject_name

_FOLDERS = ("log", "long", "corrupt")
_FILES = ("lock", "trigger", "format", "reserve", "boots", "control.sock")
_SEND_OR_REMOVE = "send by hand what is worth it, then remove it"


class LogInspector(RootInspector):
    def __init__(self, root: str, disk: Disk) -> None:
        super().__init__(root, disk, form=FORMAT, files=_FILES)
        self._layout = LogLayout(root)
        self._segments = _LookedAt(disk, self._layout)
        self._queued = LogIndex(self._segments)
        self._long: dict[QueueId, None] = {}

    def inspect(self) -> Inspection:
        """Return what there is to say.  Raises OSError; FileNotFoundError where there is no spool."""
        root = Path(self._root).stat()
        for folder in self._layout.folders():
            self._look_at_folder(folder, root)
        self._look_at_names(_FOLDERS, {})
        self._look_at_files()
        self._seen.holder = self._holder()
        try:
            self._look_at_streams()
        finally:
            self._segments.close()
        self._look_at_long()
        self._look_at_corrupt()
        self._seen.messages = len(self._queued.places)
        return self._seen

    def _look_at_streams(self) -> None:
        streams: dict[str, list[int]] = {}
        for name in self._names(self._layout.log):
            path = f"{self._layout.log}/{name}"
            if (segment := segment_of(name)) is not None:
                with contextlib.suppress(FileNotFoundError):  # a sender at work removed it
                    found = os.lstat(path)
                    what = None if stat.S_ISREG(found.st_mode) else kind_of(found)
                    what = what or self._why_a_strangers(path, found)
                    if what is not None:
                        self._find(path, "foreign", f"{what}, in the place of a segment", ASIDE, LOOK)
                    else:
                        streams.setdefault(segment.stream, []).append(segment.number)
            elif stream_of(name) is None and not self._is_made_anew(name):
                self._find(path, "foreign", foreign.NOT_OUR_NAME, ASIDE, LOOK)
        senders = streams.pop(SENDER, [])
        for stream, numbers in sorted(streams.items()):
            self._look_at_stream(stream, sorted(numbers))
        self._look_at_sender(sorted(senders))

    def _is_made_anew(self, name: str) -> bool:
        return summary_of(name.removesuffix(".new")) is not None

    def _look_at_stream(self, stream: str, numbers: list[int]) -> None:
        is_alive, position = self._writer_of(stream)
        for number in numbers:
            name = SegmentName(stream, number)
            handle = self._segments.add(name)
            is_last = number == numbers[-1]
            with self._telling(self._segments.path(handle)):
                end = self._segments.size(handle)
                if is_alive:
                    end = _announced(position, number, end)
                for group in self._groups(handle, end, may_be_torn=is_last and not is_alive):
                    for each in group.records:
                        if each.kind in MESSAGES:
                            self._queued.come(
                                each.queue_id, each.number, place_of(handle, each.at, each.record_bytes)
                            )
                            self._meet(each.kind, each.queue_id)

    def _groups(self, handle: int, end: int, *, may_be_torn: bool) -> list[ReadGroup]:
        window = self._segments.window(handle, end)
        found = list(groups(window, self._segments[handle].mark, HEADER_BYTES))
        if end and read_header(self._segments, self._segments[handle].name) is None and not may_be_torn:
            path = self._segments.path(handle)
            self._find(path, "damaged_header", "its header is damaged", "read all the same", LOOK)
        for group in found:
            if group is found[-1] and may_be_torn and not group.is_whole:
                what = f"its last {group.end - group.at} bytes are no whole group, by a crash"
                self._find(self._segments.path(handle), "torn_group", what, "what of it is sound is taken")
                continue
            for damage in group.damages:
                self._damaged(handle, damage)
        return found

    def _look_at_sender(self, numbers: list[int]) -> None:
        """Take in what the sender said, as a start does, on what of it is there."""
        on_damage: OnDamage = self._damaged
        try:
            recovery.replay(
                self._segments,
                self._queued,
                numbers,
                on_damage=on_damage,
                on_step=lambda: None,
                # Of what could not be read, or has come since, a copy is not all that there is.
                is_all_read=not self._has_unread and self._seen.holder is None,
            )
        except FileNotFoundError:
            return  # a sender at work removed it
        except (OSError, Corrupt) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            self._seen.findings.append(unreadable(f"{self._layout.log}/{SENDER}.*", why, STOPS_THE_START))

    @property
    def _has_unread(self) -> bool:
        return any(finding.kind == "unreadable" for finding in self._seen.findings)

    def _meet(self, kind: bytes, queue_id: QueueId) -> None:
        if kind in (LONG, MOVED_LONG):
            self._long[queue_id] = None

    def _damaged(self, handle: int, damage: Damage) -> None:
        whose = f"{damage.queue_id}: its record" if damage.queue_id else f"{damage.end - damage.at} bytes"
        what = f"{whose} at {damage.at} does not match its checksums"
        becomes = "set aside in corrupt/ when the relay starts; all other records are read"
        self._find(self._segments.path(handle), "damaged_record", what, becomes, _SEND_OR_REMOVE)

    def _writer_of(self, stream: str) -> tuple[bool, Position | None]:
        path = self._layout.stream_lock(stream)
        is_alive, position = False, None
        with self._telling(path):
            is_alive = os.lstat(path).st_ino in self._locked
            with opened(self._disk, self._disk.open_read(path)) as fd:
                position = decode_position(self._disk.pread(fd, POSITION_BYTES, 0))
        return is_alive, position

    @contextlib.contextmanager
    def _telling(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass  # it has ended meanwhile
        except OSError as error:
            if not is_not_now(error):
                raise
            self._seen.findings.append(unreadable(path, error.strerror))

    def _look_at_long(self) -> None:
        for name in self._names(self._layout.long):
            path = f"{self._layout.long}/{name}"
            draft = draft_of(name)
            try:
                found = os.lstat(path)
                if draft is not None and found.st_ino in self._locked:
                    self._seen.arriving += 1
                elif draft is not None:
                    what = "a draft whose listener is gone; its client was told nothing"
                    self._find(path, "draft", what, "removed at the next start, or within the hour")
                elif not is_queue_id(name):
                    self._find(path, "foreign", foreign.NOT_OUR_NAME, ASIDE, LOOK)
                elif QueueId(name) in self._queued.places:
                    self._check(path, QueueId(name))
                elif found.st_ino not in self._locked:
                    what = "content of no message that is queued: it ended, or was never accepted"
                    self._find(path, "leftover", what, "removed at the next start")
            except FileNotFoundError:
                continue  # accepted, or ended, meanwhile

    def _check(self, path: str, queue_id: QueueId) -> None:
        try:
            files.check(self._disk, path, queue_id)
        except Corrupt as fault:
            becomes = "moved to corrupt/ when the relay next meets it, never sent, never deleted"
            self._find(path, "corrupt_message", str(fault), becomes, "see in corrupt/ what it is")
        except FileNotFoundError:
            raise
        except OSError as error:
            self._seen.findings.append(unreadable(path, error.strerror))

    def _look_at_corrupt(self) -> None:
        for name in self._names(self._layout.corrupt):
            path = f"{self._layout.corrupt}/{name}"
            what = "what was set aside"
            if is_queue_id(subject_name(name)):
                what = "a message that was set aside"
            becomes = "kept and counted, never sent, never deleted"
            self._find(path, "set_aside", what, becomes, _SEND_OR_REMOVE)


class _LookedAt(Segments):
    """Segments that nobody writes to."""

    def _rewrite(self, handle: int, content: bytes, offset: int) -> None:
        """Leave it to a start."""

    def _open(self, path: str) -> int:
        return self.disk.open_read(path)


def _announced(position: Position | None, number: int, end: int) -> int:
    if position is None or number > position.number:
        return 0
    return min(end, position.end) if number == position.number else end
