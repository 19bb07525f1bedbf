"""The listener's side of the maildir: drafts, and the moment they become ours.

Any number of processes may take mail into one spool; they share only the disk.
Guarantees: a message for which `accept` returned None survives loss of power; of one for which it
returned an error nothing is queued.  A draft's file is locked while its writer lives, so that no
other process removes it.  Assumes: the folders exist (`prepare`).  Does not: know SMTP, or when to send.
"""

import contextlib
import os
from collections.abc import Callable, Sequence

from relay.clock import Clock
from relay.mail.draft import Draft
from relay.mail.envelope import Envelope, QueueId
from relay.spool.disk.durable import Disk
from relay.spool.identity import Identities
from relay.spool.maildir.layout import Layout, is_published
from relay.spool.message import arriving
from relay.spool.message.arriving import SpoolDraft
from relay.spool.root.headroom import leave_headroom


class MaildirIntake:
    """Call `draft` from one thread, the rest from any."""

    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = os.urandom,
        *,
        headroom: bool = True,
    ) -> None:
        """`headroom` is False for reports: they may use what new mail has to leave free."""
        self._layout = Layout(root)
        self._disk = disk
        self._clock = clock
        self._identities = Identities(clock, random_bytes)
        self._leaves_headroom = headroom

    def draft(self) -> SpoolDraft:
        return SpoolDraft(self._identities.next_id())

    def spill(self, draft: Draft) -> None:
        ours = arriving.ours(draft)
        try:
            self._leave_headroom(ours.buffered_bytes)
            arriving.spill(self._disk, self._layout.draft(ours.queue_id), ours)
        except OSError:
            self.discard(ours)
            raise

    def is_on_disk(self, draft: Draft) -> bool:
        return arriving.ours(draft).fd is not None

    def discard(self, draft: Draft) -> None:
        ours = arriving.ours(draft)
        arriving.discard(self._disk, ours, self._layout.draft(ours.queue_id))

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[OSError | None]:
        completed = [self._complete(arriving.ours(draft), envelope) for draft, envelope in drafts]
        results = [each if isinstance(each, OSError) else None for each in completed]
        whole = [i for i, error in enumerate(results) if error is None]
        # Crash here: drafts in tmp/, no 250 was sent; their locks died with us, clean-up removes them.
        fds = [each for each in completed if isinstance(each, int)]
        synced = self._disk.sync_each(fds, content_only=False)
        for i, error in zip(whole, synced, strict=True):
            results[i] = error or self._publish(drafts[i][0].queue_id)
        published = [i for i in whole if results[i] is None]
        if published:
            # Crash here: whole files, names perhaps not durable; no 250 was sent, either is right.
            error = self._sync_new()
            for i in published if error else ():
                results[i] = error
                with contextlib.suppress(OSError):
                    self._disk.unlink(self._layout.accepted(drafts[i][0].queue_id))
        for draft, _ in drafts:
            # Crash here: accepted, with a second name in tmp/ that clean-up removes.
            self.discard(draft)
        return results

    def publish_once(self, queue_id: QueueId, envelope: Envelope, content: bytes) -> bool:
        """Publish a report durably, unless it is there: False.  For the sender alone.  Raises OSError."""
        if is_published(self._disk, self._layout, queue_id):
            return False
        with contextlib.suppress(FileNotFoundError):
            # Only the sender writes reports, so this is what an earlier attempt left.
            self._disk.unlink(self._layout.draft(queue_id))
        draft = SpoolDraft(queue_id)
        draft.append(content)
        (error,) = self.accept([(draft, envelope)])
        if error is not None:
            raise error
        return True

    def free(self) -> tuple[int, int | None]:
        return self._disk.free(self._layout.folder("tmp"))

    def _complete(self, draft: SpoolDraft, envelope: Envelope) -> int | OSError:
        """Write all of a draft that is not written yet; return its descriptor."""
        try:
            header, tail = draft.frame(envelope, self._clock)
            self._leave_headroom(len(header) + draft.buffered_bytes + len(tail))
            return arriving.complete(self._disk, self._layout.draft(draft.queue_id), draft, header, tail)
        except OSError as error:
            return error

    def _leave_headroom(self, size_bytes: int) -> None:
        if self._leaves_headroom:
            leave_headroom(self.free(), size_bytes)

    def _publish(self, queue_id: QueueId) -> OSError | None:
        try:
            # link, not rename: it refuses a name that is taken, so that no message replaces another.
            self._disk.link(self._layout.draft(queue_id), self._layout.accepted(queue_id))
        except OSError as error:
            return error
        return None

    def _sync_new(self) -> OSError | None:
        try:
            self._disk.sync_directory(self._layout.folder("new"))
        except OSError as error:
            return error
        return None
