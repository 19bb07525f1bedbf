"""The users and certificates of listeners, read anew while the relay runs.

Guarantees: a file that is not whole or not fit for use changes nothing: the last good one stays, the log
and a metric say so, and it is read again until it is good.  A change counts once the files of a listener
have stayed as they are from one look to the next, or at once by request (SIGHUP): half a file of users may
look like a whole one.  Listener processes are given what was read here, also those that start later, and log
that they go by it.
Does not: watch what a policy names for its upstreams.
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
from relay.status.watch import Watch
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics


class ListenerFilesWatch:
    def __init__(
        self, use: Callable[[int, ListenerFiles], None], watch: Watch, events: Events, metrics: Metrics
    ) -> None:
        """`use` is given what counts from now on, with the place of its listener in the policy."""
        self._use = use
        self._watch = watch
        self._events = events
        self._metrics = metrics
        self._watched: list[tuple[int, Listen, WatchedFiles[ListenerFiles]]] = []

    async def begin(self, listens: Sequence[Listen]) -> None:
        """Read what listeners begin with.  Raises SecretError."""
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
        self._watch.certificates = tuple(
            CertificateStatus(str(listen.address), ends_at_ns)
            for _, listen, files in self._watched
            if (pair := files.in_force.pair) is not None and (ends_at_ns := pair.ends_at_ns) is not None
        )
        refused_file = next((files.error for _, _, files in self._watched if files.error), "")
        if refused_file != self._watch.policy_status.refused_file:
            self._watch.policy_status = replace(self._watch.policy_status, refused_file=refused_file)

    def _tell_loaded(self, listen: Listen, files: ListenerFiles) -> None:
        self._events.tell(
            "listener_files_loaded",
            listener=str(listen.address),
            users=len(files.hashes),
            certificate=files.fingerprint,
        )
