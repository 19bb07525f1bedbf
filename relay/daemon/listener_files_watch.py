"""Reloads the users and certificates of listeners while the relay runs.

Guarantees: a file that is incomplete or unfit changes nothing.  The last good one stays in force, the log
and a metric say so, and the file is read again until it is good.  A change takes effect once the listener's
files are the same in two looks, or at once by SIGHUP: half a file of users may look like a whole one.
Listener processes, also those that start later, get what was read here, and log that they use it.
Does not: watch files that a policy names for its upstreams.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from relay.daemon.capacity import listener_processes
from relay.listener.listener_files import ListenerFiles, read_listener_files
from relay.policy.model import Listen
from relay.policy.named_file import SecretError
from relay.status.snapshot import CertificateStatus
from relay.status.status_view import StatusView
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics

Use = Callable[[int, ListenerFiles], None]


@dataclass
class _Watched:
    index: int
    listen: Listen
    in_force: ListenerFiles
    decided: ListenerFiles | str
    """The files that were loaded or refused last; unusable files are the text of their error."""
    seen: ListenerFiles | str
    """The files at the last look."""


class ListenerFilesWatch:
    def __init__(self, use: Use, status_view: StatusView, events: Events, metrics: Metrics) -> None:
        """`use` gets the index of a listener in the policy, and the files that it uses from now on."""
        self._use, self._status_view = use, status_view
        self._events, self._metrics = events, metrics
        self._watched: list[_Watched] = []

    async def begin(self, listens: Sequence[Listen]) -> None:
        """Read the files that listeners begin with.  Raises SecretError."""
        for index, listen in enumerate(listens):
            if listen.users_file is not None or listen.certificate is not None:
                files = await asyncio.to_thread(read_listener_files, listen)
                self._watched.append(_Watched(index, listen, files, files, files))
                self._use(index, files)
                self._tell_loaded(listen, files)
        self._show()

    async def look(self, *, is_asked: bool) -> None:
        for each in self._watched:
            now: ListenerFiles | str
            try:
                now = await asyncio.to_thread(read_listener_files, each.listen)
            except SecretError as error:
                now = str(error)
            is_settled, each.seen = now == each.seen, now
            if not is_asked and (not is_settled or now == each.decided):
                continue
            each.decided = now
            if isinstance(now, str):
                self._metrics.count("relay_policy_reloads_total", "refused")
                self._events.tell("listener_files_refused", listener=str(each.listen.address), error=now)
                continue
            each.in_force = now
            self._metrics.count("relay_policy_reloads_total", "ok")
            self._use(each.index, now)
            if listener_processes(each.listen) == 0:
                self._tell_loaded(each.listen, now)
        self._show()

    def _show(self) -> None:
        self._status_view.certificates = tuple(
            CertificateStatus(str(each.listen.address), ends_at_ns)
            for each in self._watched
            if (pair := each.in_force.pair) is not None and (ends_at_ns := pair.ends_at_ns) is not None
        )
        refused_file = next((each.decided for each in self._watched if isinstance(each.decided, str)), "")
        status = self._status_view.policy_status
        if refused_file != status.refused_file:
            self._status_view.policy_status = replace(status, refused_file=refused_file)

    def _tell_loaded(self, listen: Listen, files: ListenerFiles) -> None:
        self._events.tell(
            "listener_files_loaded",
            listener=str(listen.address),
            users=len(files.hashes),
            certificate=files.fingerprint,
        )
