"""The users and certificates of listeners, read anew while the relay runs.

Guarantees: a file that is not whole or not fit for use changes nothing: the last good one stays, the log
and a metric say so, and it is read again until it is good.  A change counts once the files of a listener
have stayed as they are for a second and no program has one open for writing, or at once by request
(SIGHUP): half a file of users may look like a whole one.  Listener processes are given what was read here,
also those that start later, and log that they go by it.
Does not: watch what a policy names for its upstreams; those files are read when they are needed.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from relay.listener.listener_files import ListenerFiles, paths_of, read_listener_files
from relay.policy.model import Listen
from relay.policy.secrets import SecretError, is_open_for_writing
from relay.status.snapshot import CertificateStatus
from relay.status.watch import Watch
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics

LOOK_SECONDS = 1.0

Marks = tuple[tuple[int, ...] | None, ...]
"""What changes when a file does, for each; None for one that is not there."""


@dataclass(slots=True)
class _Watched:
    index: int
    """Of its `listen` in the policy."""
    listen: Listen
    in_force: ListenerFiles
    decided: Marks
    """Of what was read and loaded or refused."""
    seen: Marks
    """As of the last look."""
    error: str = ""
    """Why its files as they are now cannot be used."""
    paths: tuple[Path, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.paths = paths_of(self.listen)


class ListenerFilesWatch:
    def __init__(
        self, use: Callable[[int, ListenerFiles], None], watch: Watch, events: Events, metrics: Metrics
    ) -> None:
        """`use` is given what counts from now on, with the place of its listener in the policy."""
        self._use = use
        self._watch = watch
        self._events = events
        self._metrics = metrics
        self._watched: list[_Watched] = []
        self._turn = asyncio.Lock()

    async def begin(self, listens: Sequence[Listen]) -> None:
        """Read what listeners begin with.  Raises SecretError."""
        for index, listen in enumerate(listens):
            if paths := paths_of(listen):
                marks = await asyncio.to_thread(_marks, paths)
                files = await asyncio.to_thread(read_listener_files, listen)
                self._watched.append(_Watched(index, listen, files, marks, marks))
                self._use(index, files)
                self._tell_loaded(listen, files)
        self._show_certificates()

    async def watch(self) -> None:
        while self._watched:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look(is_asked=False)

    async def look(self, *, is_asked: bool) -> None:
        async with self._turn:
            for watched in self._watched:
                await self._look_at(watched, is_asked=is_asked)
            self._show_certificates()
            refused_file = next((watched.error for watched in self._watched if watched.error), "")
            if refused_file != self._watch.policy_status.refused_file:
                self._watch.policy_status = replace(self._watch.policy_status, refused_file=refused_file)

    async def _look_at(self, watched: _Watched, *, is_asked: bool) -> None:
        marks = await asyncio.to_thread(_marks, watched.paths)
        is_settled, watched.seen = marks == watched.seen, marks
        is_new = marks != watched.decided
        if not (is_asked or (is_settled and (is_new or watched.error))):
            return
        if not is_asked and await asyncio.to_thread(_is_any_written, watched.paths):
            return
        try:
            files = await asyncio.to_thread(read_listener_files, watched.listen)
        except SecretError as error:
            watched.error = str(error)
            if is_new or is_asked:
                self._metrics.policy_reloaded(is_ok=False)
                self._events.listener_files_refused(listener=str(watched.listen.address), error=str(error))
        else:
            if watched.error or files != watched.in_force:
                self._metrics.policy_reloaded(is_ok=True)
            elif not is_asked:
                files = watched.in_force
            if files is not watched.in_force:
                watched.error, watched.in_force = "", files
                self._use(watched.index, files)
                if watched.listen.processes == 0:
                    self._tell_loaded(watched.listen, files)
        watched.decided = marks

    def _show_certificates(self) -> None:
        self._watch.certificates = tuple(
            CertificateStatus(str(watched.listen.address), ends_at_ns)
            for watched in self._watched
            if (ends_at_ns := watched.in_force.ends_at_ns) is not None
        )

    def _tell_loaded(self, listen: Listen, files: ListenerFiles) -> None:
        self._events.listener_files_loaded(str(listen.address), len(files.hashes), files.fingerprint)


def _marks(paths: Sequence[Path]) -> Marks:
    return tuple(map(_mark, paths))


def _mark(path: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - as the open that follows: at the end of symbolic links
    except (OSError, ValueError):
        return None
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _is_any_written(paths: Sequence[Path]) -> bool:
    """Return False for a file that cannot be opened: reading it tells why."""
    try:
        return any(map(is_open_for_writing, paths))
    except SecretError:
        return False
