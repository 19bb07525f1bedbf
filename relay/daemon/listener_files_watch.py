"""Reloads the users and certificates of listeners while the relay runs.

Guarantees: a file that is incomplete or unfit changes nothing.  The last good one stays in force, the log
and a metric say so, and the file is read again until it is good.  A change takes effect once the listener's
files are the same in two looks, or at once by SIGHUP: half a file of users may look like a whole one.
Listener processes, also those that start later, get what was read here, and log that they use it.
Does not: watch files that a policy names for its upstreams.
"""

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from relay.daemon.capacity import listener_processes
from relay.listener.listener_files import ListenerFiles, paths_of, read_listener_files
from relay.policy.model import Listen
from relay.policy.named_file import FileChange, WatchedFiles
from relay.status.snapshot import CertificateStatus
from relay.status.status_view import StatusView
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics

Use = Callable[[int, ListenerFiles], None]


class ListenerFilesWatch:
    def __init__(self, use: Use, status_view: StatusView, events: Events, metrics: Metrics) -> None:
        """`use` gets the index of a listener in the policy, and the files that it uses from now on."""
        self._use = use
        self._status_view = status_view
        self._events = events
        self._metrics = metrics
        self._watched: list[tuple[int, Listen, WatchedFiles[ListenerFiles]]] = []

    async def begin(self, listens: Sequence[Listen]) -> None:
        """Read the files that listeners begin with.  Raises SecretError."""
        for index, listen in enumerate(listens):
            if paths := paths_of(listen):
                read = functools.partial(read_listener_files, listen)
                files: WatchedFiles[ListenerFiles] = await asyncio.to_thread(WatchedFiles, paths, read)
                self._watched.append((index, listen, files))
                self._use(index, files.in_force)
                self._tell_loaded(listen, files.in_force)
        self._show()

    async def look(self, *, is_asked: bool) -> None:
        for index, listen, files in self._watched:
            found = await asyncio.to_thread(files.look, is_asked=is_asked)
            if found is FileChange.REFUSED:
                self._metrics.count("relay_policy_reloads_total", "refused")
                self._events.tell("listener_files_refused", listener=str(listen.address), error=files.error)
            elif found is FileChange.CHANGED:
                self._metrics.count("relay_policy_reloads_total", "ok")
                self._use(index, files.in_force)
                if listener_processes(listen) == 0:
                    self._tell_loaded(listen, files.in_force)
        self._show()

    def _show(self) -> None:
        self._status_view.certificates = tuple(
            CertificateStatus(str(listen.address), ends_at_ns)
            for _, listen, files in self._watched
            if (pair := files.in_force.pair) is not None and (ends_at_ns := pair.ends_at_ns) is not None
        )
        refused_file = next((files.error for _, _, files in self._watched if files.error), "")
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
