"""The certificates that the relay shows to its upstreams (`tls_certificate`, `tls_key`), read while it runs.

Guarantees: a new connection shows the last pair that was whole and fit for use, read no later than when the
upstream was first connected to; files that are replaced count once they rest (`WatchedFiles`), so that a
renewed certificate needs no restart and half of one is never shown.  An edit that names other files counts at
once.  What is loaded and refused is told.
Does not: end connections that showed the pair of before.
"""

import asyncio
import functools
from collections.abc import Mapping
from pathlib import Path

from relay.policy.model import Upstream
from relay.policy.named_file import FileChange, WatchedFiles
from relay.policy.secrets import KeyPair, SecretError, read_key_pair
from relay.telemetry.events import Events


class ClientCertificates:
    def __init__(self, events: Events) -> None:
        self._events = events
        self._watched: dict[str, WatchedFiles[KeyPair]] = {}
        self._turn = asyncio.Lock()

    async def pair(self, name: str, upstream: Upstream) -> KeyPair | None:
        """Return what a new connection shows; None without a certificate.  Raises SecretError."""
        if upstream.tls_certificate is None:
            return None
        async with self._turn:
            return (await self._begun(name, upstream)).in_force

    def ends_at_ns(self, name: str) -> int | None:
        """Return when the certificate of an upstream ends, by the wall clock; None without one."""
        return None if (watched := self._watched.get(name)) is None else watched.in_force.ends_at_ns

    async def look(self, upstreams: Mapping[str, Upstream]) -> None:
        """See whether files were replaced; call it each second, with the policy's upstreams."""
        wanted = {name: each for name, each in upstreams.items() if each.tls_certificate is not None}
        async with self._turn:
            for name in [each for each in self._watched if each not in wanted]:
                del self._watched[name]
            for name, upstream in wanted.items():
                if not self._is_begun(name, upstream):
                    try:
                        await self._begun(name, upstream)
                    except SecretError:
                        self._watched.pop(name, None)  # a connection tells why
                    continue
                watched = self._watched[name]
                match await asyncio.to_thread(watched.look):
                    case FileChange.REFUSED:
                        self._events.tell("client_certificate_refused", upstream=name, error=watched.error)
                    case FileChange.CHANGED | FileChange.REREAD:
                        self._tell_loaded(name, watched.in_force)
                    case FileChange.NOTHING:
                        pass

    def _is_begun(self, name: str, upstream: Upstream) -> bool:
        return name in self._watched and self._watched[name].paths == _paths(upstream)

    async def _begun(self, name: str, upstream: Upstream) -> WatchedFiles[KeyPair]:
        """Return the files that an upstream names, read by now.  Raises SecretError."""
        if upstream.tls_certificate is not None and not self._is_begun(name, upstream):
            read = functools.partial(read_key_pair, upstream.tls_certificate, upstream.tls_key)
            begun: WatchedFiles[KeyPair] = await asyncio.to_thread(WatchedFiles, _paths(upstream), read)
            self._watched[name] = begun
            self._tell_loaded(name, begun.in_force)
        return self._watched[name]

    def _tell_loaded(self, name: str, pair: KeyPair) -> None:
        self._events.tell("client_certificate_loaded", upstream=name, certificate=pair.fingerprint)


def _paths(upstream: Upstream) -> tuple[Path, ...]:
    return tuple(path for path in (upstream.tls_certificate, upstream.tls_key) if path is not None)
