"""What all sessions of one listener share.  Made once, before the first connection.

Reads the certificate and the users file when it is made, so that a mistake in them
stops the start and not a session.
"""

import ssl
from typing import NamedTuple

from relay.clock import Clock
from relay.listener.access import Admission, Client, Relaying
from relay.listener.ports import Intake, Observer
from relay.listener.received import as_name
from relay.listener.register import Register
from relay.listener.users import BackOff, Users
from relay.policy.model import Listen, Timeouts, Tls
from relay.policy.secrets import read_users

_SECOND_NS = 1e9


class Seconds(NamedTuple):
    """The timeouts as the event loop counts them."""

    command: float
    content: float
    transfer: float
    session: float

    @classmethod
    def of(cls, timeouts: Timeouts) -> "Seconds":
        """Return a policy's timeouts in seconds."""
        return cls(
            timeouts.command_ns / _SECOND_NS,
            timeouts.content_ns / _SECOND_NS,
            timeouts.transfer_ns / _SECOND_NS,
            timeouts.session_ns / _SECOND_NS,
        )


class Reception:
    """One listener's rules, tables and ports.

    Raises OSError (ssl.SSLError is one) for a certificate, SecretError for a users file
    that cannot be used.
    """

    def __init__(
        self, listen: Listen, hostname: str, intake: Intake, observer: Observer, clock: Clock
    ) -> None:
        self.listen = listen
        self.name = str(listen.address)
        self.hostname = as_name(hostname)
        self.intake = intake
        self.observer = observer
        self.clock = clock
        self.seconds = Seconds.of(listen.timeouts)
        self.relaying = Relaying(listen.clients)
        self.admission = Admission(listen.max_connections, listen.max_connections_per_client)
        self.register = Register(min(self.seconds))
        hashes = read_users(listen.users_file) if listen.users_file is not None else {}
        self.users = Users(hashes) if hashes else None
        self.back_off = BackOff()
        self.tls = _tls_context(listen)
        self.is_closing = False
        self.greeting = f"220 {self.hostname} ESMTP relay"

    @property
    def is_implicit_tls(self) -> bool:
        """Return whether TLS comes before the greeting."""
        return self.listen.tls is Tls.IMPLICIT

    @property
    def offers_starttls(self) -> bool:
        """Return whether a session in the clear may ask for TLS."""
        return self.tls is not None and not self.is_implicit_tls

    def offers_auth(self, client: Client, *, is_tls: bool) -> bool:
        """Return whether a password may be asked for: not where others could read it."""
        return self.users is not None and (is_tls or client.is_loopback)

    def ehlo_reply(self, *, starttls: bool, auth: bool) -> str:
        """Return the whole reply to EHLO."""
        keywords = [
            self.hostname,
            "PIPELINING",
            f"SIZE {self.listen.max_size}",
            "8BITMIME",
            "SMTPUTF8",
            *(("STARTTLS",) if starttls else ()),
            *(("AUTH PLAIN LOGIN",) if auth else ()),
            "ENHANCEDSTATUSCODES",
        ]
        return "\r\n".join(f"250-{keyword}" for keyword in keywords[:-1]) + f"\r\n250 {keywords[-1]}"


def _tls_context(listen: Listen) -> ssl.SSLContext | None:
    if listen.certificate is None:
        if listen.tls is Tls.IMPLICIT:
            raise ValueError(f"{listen.address}: implicit TLS needs a certificate")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The empty passphrase keeps OpenSSL from asking the terminal for one.
    context.load_cert_chain(listen.certificate, listen.key, password="")
    return context
