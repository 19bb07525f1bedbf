"""A message that is still arriving, as the listener and every engine of the spool see it.  Pure."""

from typing import Protocol

from relay.mail.envelope import QueueId


class Draft(Protocol):
    """Nothing of it is promised to anybody."""

    queue_id: QueueId
    """The id that the message will have if it is accepted; goes into `Received:`."""

    def append(self, chunk: bytes) -> None:
        """Add content, in memory only; never blocks, never fails."""

    @property
    def buffered_bytes(self) -> int:
        """Return how much content is in memory, waiting to be spilled."""

    @property
    def is_on_disk(self) -> bool:
        """Whether something of it is written; else to discard it is no I/O."""

    def spill(self) -> None:
        """Write what is buffered.  Raises SpoolError of the engine, and the draft is discarded then."""

    def discard(self) -> None:
        """Forget it, and remove what it wrote; never raises."""
