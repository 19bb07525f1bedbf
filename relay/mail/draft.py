"""A message that is still arriving, as the listener and every engine of the spool see it.  Pure."""

from typing import Protocol

from relay.mail.envelope import QueueId


class Draft(Protocol):
    """The relay has not taken responsibility for it."""

    queue_id: QueueId
    """The id of the message if it is accepted; it also stands in `Received:`."""

    def append(self, chunk: bytes) -> None:
        """Add content, in memory only; never blocks, never fails."""

    @property
    def buffered_bytes(self) -> int:
        """Return the size of the content in memory that waits for `spill`."""

    @property
    def is_on_disk(self) -> bool:
        """Whether a part of it is written; if not, `discard` does no I/O."""

    def spill(self) -> None:
        """Write the buffered content.  Raises SpoolError of the engine; the draft is then discarded."""

    def discard(self) -> None:
        """Drop the draft and remove what it wrote; never raises."""
