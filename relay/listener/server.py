"""A listener: its socket, its sessions and its shutdown.

Guarantees: at most `max_connections` sessions; after `close` none of its tasks runs.
Assumes: one event loop, asyncio's or uvloop's.
"""

import asyncio
import socket
from typing import Any

from relay.listener.accepting import Acceptor
from relay.listener.access import Client
from relay.listener.listener_state import ListenerState
from relay.listener.session import ClientSession
from relay.policy.model import Listen
from relay.policy.units import HostPort
from relay.smtp import replies

_BACKLOG = 1024


def bind(listen: Listen) -> socket.socket:
    """Return a listening socket, which processes can share.  `[::]` takes IPv4 too.  Raises OSError."""
    host, port = listen.address.host, listen.address.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual_stack = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual_stack)


class Listener(ListenerState):
    address: HostPort
    """Set by `start`, with the port that the kernel chose for port 0."""
    _acceptor: Acceptor | None = None

    async def start(self, bound: socket.socket | None = None) -> None:
        """Accept connections on `bound`, a socket of `bind`, or on a new one.  Raises OSError."""
        bound = bound or bind(self.listen)
        self.address = HostPort(*bound.getsockname()[:2])
        self._acceptor = Acceptor(
            bound, self._receive, lambda error: self.observer.fault(self.name, "unknown", error)
        )

    async def close(self, deadline_seconds: float) -> None:
        """Stop accepting, let content in flight finish, and cancel sessions that are left at the deadline.

        Idle sessions get 421, others at their next command; EHLO, HELO and QUIT are answered as usual.
        A message that is cut off here gets no reply, so the client keeps it.
        """
        if self._acceptor is not None:
            await self._acceptor.close()
        sessions = list(self.sessions)
        for session in sessions:
            session.shut_down()
        if sessions:
            _, cut_off = await asyncio.wait([each.task for each in sessions], timeout=deadline_seconds)
            for task in cut_off:
                task.cancel()
            await asyncio.gather(*cut_off, return_exceptions=True)
        self.users.close()

    async def _receive(self, accepted: socket.socket, peer: Any) -> None:
        """Start a session on an accepted socket; this is the `Receive` of the `Acceptor`."""
        client = await self._client_of(accepted, Client.of_peer(peer[0]))
        place = self.place_for(client)
        if (refusal := self.admission.enter(place)) is not None:
            self.observer.refused(self.name, str(client), "connect", refusal, None)
            if not self.is_implicit_tls:  # the client could not read it before the handshake
                accepted.send(refusal.encode("ascii") + b"\r\n")
            raise ConnectionRefusedError
        tls = self.tls if self.is_implicit_tls else None
        session = ClientSession(self, place)
        try:
            # Counted before the TLS handshake, so silent clients take no more places than others.
            await asyncio.get_running_loop().connect_accepted_socket(lambda: session, accepted, ssl=tls)
        except BaseException:
            # The loop closes the transport, and never reports it as lost.
            if session in self.sessions:
                session.task.cancel()
            else:
                self.admission.leave(place)
            raise

    async def _client_of(self, accepted: socket.socket, peer: Client) -> Client:
        """Return the client behind a peer.  Raises ConnectionRefusedError for a missing PROXY header."""
        if not peer.is_in(self.listen.proxies):
            return peer
        from relay.listener.proxied import client_behind  # noqa: PLC0415 - 1 MB that few listeners need

        try:
            told = await client_behind(accepted)
        except OSError as error:
            # No reply: a peer without the header may not speak SMTP, and a balancer has no client to tell.
            reply = f"{replies.NO_PROXY_HEADER}: {error}"
            self.observer.refused(self.name, str(peer), "connect", reply, None)
            raise ConnectionRefusedError from error
        client = peer if told is None else Client.of_peer(told)
        # A loopback address behind a remote balancer is on the balancer's host, not on ours.
        return peer if client.is_loopback and not peer.is_loopback else client
