"""The state that all sessions of one listener share.  Made once, before the first connection."""

from relay.clock import SECOND_NS, Clock
from relay.listener.access import Admission, Client, ClientPlace
from relay.listener.content import ContentDecoder
from relay.listener.listener_files import ListenerFiles
from relay.listener.ports import IntakePort, Observer
from relay.listener.quotas import Quotas
from relay.listener.received import as_name
from relay.listener.users import LoginLockouts, Users
from relay.listener.wire import ClientConnection
from relay.policy.model import Listen
from relay.smtp.session_machine import ServerTerms

MECHANISMS = ("PLAIN", "LOGIN")
"""Without CRAM-MD5: it needs the passwords themselves, and the relay has only hashes."""


class ListenerState:
    def __init__(
        self,
        listen: Listen,
        hostname: str,
        intake: IntakePort,
        observer: Observer,
        *,
        files: ListenerFiles,
        clock: Clock,
    ) -> None:
        self.listen, self.name = listen, str(listen.address)
        self.hostname = as_name(hostname)
        self.greeting = f"220 {self.hostname} ESMTP relay"
        self.intake, self.observer, self.clock = intake, observer, clock
        times = listen.timeouts
        self.command_s, self.session_s = times.command_ns / SECOND_NS, times.session_ns / SECOND_NS
        self.content_s, self.transfer_s = times.content_ns / SECOND_NS, times.transfer_ns / SECOND_NS
        self.users = Users(files.hashes)
        self.lockouts = LoginLockouts(self.clock)
        can_log_in = bool(files.hashes)
        self.admission = Admission(
            listen.max_connections, listen.max_connections_per_client, can_log_in=can_log_in
        )
        self.tls = files.tls()
        self.is_implicit_tls = listen.tls == "implicit"
        self.terms = ServerTerms(
            self.hostname,
            listen.max_size,
            listen.max_recipients,
            mechanisms=MECHANISMS if can_log_in else (),
            has_starttls=self.tls is not None and not self.is_implicit_tls,
        )
        self.quotas = Quotas(listen)
        self.sessions: set[ClientConnection] = set()

    def use(self, files: ListenerFiles) -> None:
        """Replace users and certificate.  A session with a user who is gone or changed gets 421 at MAIL."""
        self.tls = files.tls()
        self.users.use(files.hashes)

    def place_for(self, client: Client) -> ClientPlace:
        return ClientPlace(client, may_relay=client.is_in(self.listen.clients))

    def decoder_for(self, client: Client) -> ContentDecoder:
        normalise = self.listen.bare_newlines == "normalise" or client.is_in(self.listen.normalise_from)
        return ContentDecoder(self.listen.max_size, self.listen.max_hops, normalise=normalise)
