"""Writes the bytes of a message file that change: the statuses, and the byte of the warning.

Guarantees: no byte is written if the file's recipients differ from those that the message was read with.
"""

from collections.abc import Mapping, Sequence

from relay.mail.envelope import Envelope
from relay.spool.disk.durable import Disk
from relay.spool.interface import Corrupt, Status
from relay.spool.message.message_file import HEADER_BYTES, WARNED_BYTE, WARNED_OFFSET, lines_of, mark_of

_BY_MARK = {mark_of(status, is_told=is_told): status for status in Status for is_told in (False, True)}


class Marks:
    """The status bytes of one open file, as they are now."""

    def __init__(self, disk: Disk, fd: int, envelope: Envelope) -> None:
        """Read the recipients' lines and compare them with the envelope.  Raises Corrupt, OSError."""
        self._disk = disk
        self._fd = fd
        size_bytes = disk.size(fd)
        lines = list(lines_of(envelope, size_bytes))
        begin = lines[0][0]
        if begin < HEADER_BYTES:
            raise Corrupt("the file is shorter than when it was read")
        block = disk.pread(fd, size_bytes - begin, begin)
        self._offsets = [offset for offset, _ in lines]
        self._marks: list[bytes] = []
        for index, (offset, address) in enumerate(lines):
            at = offset - begin
            mark = block[at : at + 1]
            if block[at + 1 : at + 1 + len(address)] != address or mark not in _BY_MARK:
                raise Corrupt(f"the line of recipient {index} changed since it was read")
            self._marks.append(mark)

    @property
    def has_left(self) -> bool:
        """Whether a recipient is still to do."""
        return Status.TODO.value in self._marks

    def are_told(self, told: Sequence[int]) -> bool:
        """Whether `told` is not empty, and the sender was told of each of them."""
        return bool(told) and all(self._marks[index].islower() for index in told)

    def mark(self, marks: Mapping[int, Status]) -> None:
        """Write statuses.  Raises Corrupt before any write if a recipient has another final one; OSError."""
        for index, status in marks.items():
            before = _BY_MARK[self._marks[index]]
            if before not in (Status.TODO, status):
                raise Corrupt(f"recipient {index} is already {before.name} and cannot become {status.name}")
        for index, status in marks.items():
            # Write a status that is there already again: after a failed sync it may be in memory alone.
            is_new = self._marks[index] == Status.TODO.value
            self._write(index, status.value if is_new else self._marks[index])

    def tell(self, told: Sequence[int]) -> None:
        """Mark that a report told the sender of recipients.  Raises OSError."""
        for index in told:
            self._write(index, self._marks[index].lower())

    def warn(self) -> None:
        """Mark that the sender was warned of a delay.  Raises OSError."""
        self._disk.write_at(self._fd, WARNED_BYTE, WARNED_OFFSET)

    def _write(self, index: int, mark: bytes) -> None:
        self._disk.write_at(self._fd, mark, self._offsets[index])
        self._marks[index] = mark


def told_in_two_steps(told: Sequence[int], *, ends: bool) -> tuple[Sequence[int], Sequence[int]]:
    """Return which recipients to mark as told first, and which once those marks are durable: the first one.

    The report's id comes from its first recipient that is not marked, so after a crash between the steps it
    leads to the same report.  If the message ends, the id names no recipient, and one step marks all.
    """
    return (told, ()) if ends else (told[1:], told[:1])
