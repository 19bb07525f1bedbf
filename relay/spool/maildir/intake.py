"""The listener's side of the maildir: it writes drafts and publishes them as messages.

Any number of processes may accept mail into one spool; they share only the disk.
Guarantees: a message for which `accept` returned None survives loss of power.  One for which it returned an
error is not queued.  A draft's file is locked while its writer lives, so that nobody else removes it.
Assumes: the folders exist (`prepare`).  Does not: know SMTP, or when to send.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence

from relay.clock import Clock
from relay.mail.envelope import Draft, Envelope, QueueId
from relay.spool.disk.durable import Disk
from relay.spool.disk.os_errors import error_of
from relay.spool.errors import kernel_errors, of_kernel
from relay.spool.identity import Identities
from relay.spool.interface import Full, SpoolError, Unavailable
from relay.spool.maildir.layout import FORMAT, MaildirLayout, is_published
from relay.spool.message.draft import SpoolDraft, ours
from relay.spool.root.headroom import leave_headroom, room
from relay.spool.root.lock import take_intake_lock


class MaildirIntake:
    """Call `draft` from one thread, the other methods from any."""

    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = os.urandom,
        *,
        headroom: bool = True,
    ) -> None:
        """Raise OSError, SpoolBusy if the spool is being converted, and ValueError for another format.

        `headroom` is False for the owner's reports: they may use the room that new mail must leave free.
        """
        self._lock_fd = take_intake_lock(root, disk, FORMAT) if headroom else None
        self._layout = MaildirLayout(root)
        self._disk = disk
        self._clock = clock
        self._identities = Identities(clock, random_bytes)
        self._leaves_headroom = headroom

    def draft(self) -> SpoolDraft:
        return self._draft(self._identities.next_id())

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[Full | Unavailable | None]:
        completed = [self._complete(ours(draft), envelope) for draft, envelope in drafts]
        results = [each if isinstance(each, OSError) else None for each in completed]
        whole = [i for i, error in enumerate(results) if error is None]
        # Crash here: drafts in tmp/, and no 250 was sent.  Their locks are free, so `tidy` removes them.
        fds = [each for each in completed if isinstance(each, int)]
        synced = self._disk.sync_each(fds, content_only=False)
        for i, error in zip(whole, synced, strict=True):
            queue_id = drafts[i][0].queue_id
            # link, not rename: link refuses a name that is taken, so no message replaces another.
            results[i] = error or error_of(
                self._disk.link, f"{self._layout.drafts}/{queue_id}", f"{self._layout.new}/{queue_id}"
            )
        if published := [i for i in whole if results[i] is None]:
            # Crash here: whole files, names perhaps not durable.  No 250 was sent: either outcome is right.
            error = error_of(self._disk.sync_directory, self._layout.new)
            for i in published if error else ():
                results[i] = error
                with contextlib.suppress(OSError):
                    self._disk.unlink(f"{self._layout.new}/{drafts[i][0].queue_id}")
        for draft, _ in drafts:
            # Crash here: an accepted message, and its second name in tmp/, which `tidy` removes.
            draft.discard()
        return [None if error is None else of_kernel(error, "message") for error in results]

    def publish(
        self, messages: Sequence[tuple[QueueId, Envelope, Iterable[bytes]]]
    ) -> list[Full | Unavailable | None]:
        """Publish messages durably under their ids; skip those that are published already.

        Only the owner of the queue calls this.  Raises the SpoolError that reading the content raises.
        """
        drafts: list[tuple[SpoolDraft, Envelope]] = []
        try:
            for queue_id, envelope, content in messages:
                if is_published(self._disk, self._layout, queue_id):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    # Only the owner uses these ids, so an earlier attempt left this file.
                    self._disk.unlink(f"{self._layout.drafts}/{queue_id}")
                drafts.append((self._draft(queue_id), envelope))
                drafts[-1][0].fill(content)
        except (OSError, SpoolError) as error:
            for draft, _ in drafts:
                draft.discard()
            if isinstance(error, SpoolError):
                raise
            return [of_kernel(error, "message")] * len(messages)
        failures = zip(drafts, self.accept(drafts), strict=True)
        failed = {draft.queue_id: failure for (draft, _), failure in failures}
        return [failed.get(queue_id) for queue_id, _, _ in messages]

    def room(self) -> int:
        with kernel_errors("room"):
            return room(self._disk.free(self._layout.drafts))

    def close(self) -> None:
        if self._lock_fd is not None:
            self._disk.close(self._lock_fd)
            self._lock_fd = None

    def _draft(self, queue_id: QueueId) -> SpoolDraft:
        return SpoolDraft(queue_id, self._disk, f"{self._layout.drafts}/{queue_id}", self._leave_room)

    def _leave_room(self, size_bytes: int) -> None:
        if self._leaves_headroom:
            leave_headroom(self._disk.free(self._layout.drafts), size_bytes)

    def _complete(self, draft: SpoolDraft, envelope: Envelope) -> int | OSError:
        """Write the rest of a draft; return its descriptor, or the error."""
        try:
            return draft.complete(*draft.frame(envelope, self._clock))
        except OSError as error:
            return error
