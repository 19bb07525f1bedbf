"""What all sessions of one listener share.  Made once, before the first connection.

Reads the certificate and the users file when it is made, unless it is given them, so that a mistake in
them stops the start and not a session.  `use` takes others later.
"""

from relay.clock import SECOND_NS, Clock
from relay.listener.access import Admission, Client, ClientNetworks, ClientPlace
from relay.listener.content import ContentDecoder
from relay.listener.listener_files import ListenerFiles, read_listener_files
from relay.listener.ports import IntakePort, Observer
from relay.listener.quotas import Quotas
from relay.listener.received import as_name
from relay.listener.users import Guesses, Users
from relay.listener.wire import ClientConnection
from relay.policy.model import Listen, Tls
from relay.smtp.session_machine import ServerTerms

MECHANISMS = ("PLAIN", "LOGIN")
"""CRAM-MD5 would need the passwords themselves, not their hashes."""


class Reception:
    """Raises SecretError for a certificate, a key or a users file that cannot be used."""

    def __init__(
        self,
        listen: Listen,
        hostname: str,
        intake: IntakePort,
        observer: Observer,
        clock: Clock,
        *,
        files: ListenerFiles | None = None,
    ) -> None:
        self.listen, self.name = listen, str(listen.address)
        self.hostname = as_name(hostname)
        self.greeting = f"220 {self.hostname} ESMTP relay"
        self.intake, self.observer, self.clock = intake, observer, clock
        times = listen.timeouts
        self.command_s, self.session_s = times.command_ns / SECOND_NS, times.session_ns / SECOND_NS
        self.content_s, self.transfer_s = times.content_ns / SECOND_NS, times.transfer_ns / SECOND_NS
        self._relaying, self._normalised = (
            ClientNetworks(listen.clients),
            ClientNetworks(listen.normalise_from),
        )
        files = files or read_listener_files(listen)
        self.users = Users(files.hashes) if files.hashes else None
        self.guesses = Guesses(clock)
        self.admission = Admission(
            listen.max_connections, listen.max_connections_per_client, can_log_in=self.users is not None
        )
        self.tls = files.tls()
        self.is_implicit_tls = listen.tls is Tls.IMPLICIT
        self.terms = ServerTerms(
            self.hostname,
            listen.max_size,
            listen.max_recipients,
            mechanisms=MECHANISMS if self.users is not None else (),
            has_starttls=self.tls is not None and not self.is_implicit_tls,
        )
        self.quotas = Quotas(listen)
        self.sessions: set[ClientConnection] = set()

    def use(self, files: ListenerFiles) -> None:
        """Go by other users and another certificate; who is logged in as another user than now has to go."""
        self.tls = files.tls()
        if self.users is not None:
            self.users.use(files.hashes)

    def place_for(self, client: Client) -> ClientPlace:
        return ClientPlace(client, self._relaying.has(client))

    def decoder_for(self, client: Client) -> ContentDecoder:
        listen = self.listen
        normalise = listen.bare_newlines == "normalise" or self._normalised.has(client)
        return ContentDecoder(listen.max_size, listen.max_hops, normalise=normalise)
