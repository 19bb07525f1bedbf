"""A connection to the upstream: opened, secured and logged in, then used for transactions.

Guarantees: TLS is never opportunistic, and is version 1.2 or newer.  The certificate is verified against
`ca_file` or the system's authorities, and against the host's name.  A password is never sent without TLS,
except to this host itself.  Every failure to open raises `UpstreamUnavailable`, which blames no message.
The upstream counts at most one connection for each opening: the next address is tried only if TCP failed.
Does not: keep connections (`pool`), or decide when to send (the sender, the throttle).
"""

import asyncio
import functools
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

from relay.clock import SECOND_NS, Clock
from relay.mail.text import clean
from relay.policy.model import Upstream
from relay.policy.secrets import KeyPair, SecretError, client_context, load_certificate, read_authorities
from relay.policy.shipped import standard_rules
from relay.smtp.extensions import Extensions, extensions_of
from relay.smtp.reply import Phase, Reply
from relay.smtp.sasl import BearerToken, Credentials
from relay.upstream.login import AnyMechanism, choose, log_in
from relay.upstream.protocol import Broken, StrictProtocol, Timeouts
from relay.upstream.transaction import Channel, Exchange, Transaction
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.verdict import Judge, Ruling, Verdict

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class UpstreamServer:
    upstream: Upstream
    """Where to connect, and with which TLS; its `auth` is not used."""
    helo_name: str
    """The argument of EHLO: our name, or an address literal such as `[192.0.2.1]`."""
    credentials: Credentials | BearerToken | None = None
    """None: the relay does not log in."""
    mechanism: AnyMechanism = "auto"
    judge: Judge = field(default_factory=lambda: Judge(standard_rules()), repr=False, compare=False)
    pair: KeyPair | None = field(default=None, repr=False)
    """The client certificate for TLS, with its key; the key was read, and fits the certificate."""


class UpstreamUnavailable(Exception):  # noqa: N818 - it is what the upstream is, and reads as such
    """No connection could be opened.  `answer` names the step and the reason; it blames no message.

    `__cause__` is the OSError, if one was the reason: a lack of descriptors is no fault of the upstream.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.text)
        self.answer = answer


class Connection:
    """One open session, for one transaction at a time."""

    def __init__(self, channel: Channel, *, name: str, opened_at_ns: int) -> None:
        self.name = name
        self.opened_at_ns = opened_at_ns
        self.transactions = 0
        self.relayed = 0
        """Transactions that relayed the message to a recipient; the holder of the connection counts them."""
        secured = _ssl_of(channel.protocol)
        self.tls = None if secured is None else secured.version()
        self.certificate_ends_at_ns = None if secured is None else _ends_at_ns(secured.getpeercert() or {})
        """When the upstream's certificate expires, by the wall clock; None without TLS."""
        self.extensions = channel.extensions
        self._channel = channel

    @property
    def is_usable(self) -> bool:
        """Whether another transaction may begin: the connection is open, no reply is due or unread."""
        return self._channel.protocol.is_quiet

    @property
    def fault_before_use(self) -> UpstreamUnavailable | None:
        fault = self._channel.protocol.fault
        if self.transactions or fault is None:
            return None
        text = f"the connection ended before its first message: {fault}"
        return UpstreamUnavailable(Answer(Verdict.PAUSE, Phase.CONNECT, fault.reply, text))

    def transact(self, transaction: Transaction) -> Coroutine[Any, Any, Outcome]:
        """Run a transaction that this connection can carry; never raise for what the upstream does.

        Raises what the content raises, and `UnsendableContent` if a line does not end in CRLF; then nothing
        was relayed.  Cancelling closes the connection at once.  A caller that cancels after the content was
        read must treat the transaction as ambiguous.
        """
        self.transactions += 1
        return Exchange(self._channel, transaction, is_reused=self.transactions > 1).run()

    async def close(self) -> None:
        """Send QUIT if the connection is usable, and close it within seconds.  Never raises."""
        await self._channel.protocol.quit(self._channel.timeouts.quit_s)

    def abort(self) -> None:
        self._channel.protocol.abort()


OnStep = Callable[[str, str], None]
"""Called with each step that is done (resolve, connect, tls, greeting, ehlo, login), and its result."""


async def open_connection(
    account: UpstreamServer,
    clock: Clock,
    timeouts: Timeouts | None = None,
    on_step: OnStep = lambda _, __: None,
) -> Connection:
    """Return a connection that is ready for MAIL.  Raises UpstreamUnavailable."""
    return await _Opening(account, clock, timeouts or Timeouts(), on_step).run()


class _Opening:
    def __init__(self, account: UpstreamServer, clock: Clock, timeouts: Timeouts, on_step: OnStep) -> None:
        self._account, self._upstream = account, (upstream := account.upstream)
        self._clock = clock
        self._on_step = on_step
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._protocol = StrictProtocol(self._loop)
        self._name = f"{upstream.host}:{upstream.port}"
        self._from_source = f" from {upstream.source_address}" if upstream.source_address else ""
        hello = b"EHLO " + account.helo_name.encode("ascii", "replace")
        self._channel = Channel(self._protocol, Extensions(), timeouts, account.judge, hello)

    async def run(self) -> Connection:
        try:
            await self._open()
        except BaseException as error:
            self._protocol.abort()
            match error:
                case Broken(reply=None):
                    answer = error.answer(self._protocol.phase, Verdict.PAUSE)
                    raise UpstreamUnavailable(answer) from error
                case Broken(reply=Reply() as reply):
                    raise self._refused(reply) from error
                case SecretError():
                    raise self._unavailable(f"ca_file: {error}") from error
                case OSError():
                    raise self._unavailable(_why(error)) from error
            raise
        return Connection(self._channel, name=self._name, opened_at_ns=self._clock.boottime_ns())

    async def _open(self) -> None:
        account, upstream, context = self._account, self._upstream, None
        if upstream.tls != "none":
            # Reading some hundred certificates would block the loop.
            context = await asyncio.to_thread(_trusting, upstream.ca_file, account.pair)
        await self._connect(context if upstream.tls == "implicit" else None)
        greeting = await self._protocol.reply(self._timeouts.greeting_s)
        self._expect(greeting, 220)
        self._on_step("greeting", str(greeting))
        await self._hello()
        if upstream.tls == "starttls" and context is not None:
            self._protocol.phase = Phase.STARTTLS
            if not self._channel.extensions.starttls:
                raise self._unavailable("the upstream does not offer STARTTLS; no password or mail was sent")
            self._expect(await self._protocol.secure(context, upstream.host, self._timeouts.tls_s), 220)
            self._tell_tls()
            # RFC 3207, 4.2: the client discards what the server said before TLS.
            await self._hello()
        if account.credentials is not None:
            await self._log_in(account.credentials)

    async def _connect(self, context: ssl.SSLContext | None) -> None:
        """Connect to the first address that answers, and begin implicit TLS."""
        last, source = OSError("the host name has no address"), self._upstream.source_address
        for address in await self._addresses():
            self._name = f"{self._upstream.host}[{address}]:{self._upstream.port}"
            connected = socket.socket(_family(address), socket.SOCK_STREAM)
            try:
                connected.settimeout(0)  # the loop waits, not the call
                if source is not None:
                    connected.bind((source, 0))
                await self._in_time(self._loop.sock_connect(connected, (address, self._upstream.port)))
            except OSError as error:
                connected.close()
                last = error
            except BaseException:
                connected.close()
                raise
            else:
                break
        else:
            raise last
        self._on_step("connect", self._name + self._from_source)
        # From here on a failure is final: the upstream would count another address as a second connection.
        server_hostname = self._upstream.host if context else None
        opening = self._loop.create_connection(
            lambda: self._protocol, sock=connected, ssl=context, server_hostname=server_hostname
        )
        await self._in_time(opening)
        if context is not None:
            self._tell_tls()

    async def _in_time(self, waited: Awaitable[_T]) -> _T:
        """Raise TimeoutError, with a text to show, after `connect_s`."""
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                return await waited
        except TimeoutError:
            raise TimeoutError(f"no answer within {self._timeouts.connect_s:g} s") from None

    async def _addresses(self) -> list[str]:
        """Return the addresses, in this host's order of preference (RFC 6724)."""
        upstream, source = self._upstream, self._upstream.source_address
        family = socket.AF_UNSPEC if source is None else _family(source)
        asked = self._loop.getaddrinfo(upstream.host, upstream.port, family=family, type=socket.SOCK_STREAM)
        try:
            found = await self._in_time(asked)
        except OSError as error:
            raise self._unavailable(f"the host name could not be looked up: {_why(error)}") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        self._on_step("resolve", " ".join(addresses))
        if upstream.tls == "none" and self._account.credentials is not None:
            addresses = [each for each in addresses if ip_address(each.partition("%")[0]).is_loopback]
            if not addresses:
                raise self._unavailable("without TLS, a password is sent only to this host itself")
        return addresses

    async def _hello(self) -> None:
        reply = await self._protocol.command(self._channel.hello, Phase.EHLO, self._timeouts.hello_s)
        self._expect(reply, 250)
        offered = extensions_of(reply)
        is_pipelined = offered.pipelining and self._upstream.pipelining
        self._channel.extensions = replace(offered, pipelining=is_pipelined)
        self._channel.welcome = reply.lines[0]
        self._on_step("ehlo", " ".join(line.strip() for line in reply.lines[1:]) or "no extensions")

    async def _log_in(self, credentials: Credentials | BearerToken) -> None:
        offered, wanted = self._channel.extensions.mechanisms, self._account.mechanism
        self._protocol.phase = Phase.AUTH
        is_encrypted, has_token = self._upstream.tls != "none", isinstance(credentials, BearerToken)
        mechanism = choose(offered, wanted, is_encrypted=is_encrypted, has_token=has_token)
        if mechanism is None:
            names = " ".join(sorted(offered)).upper() or "none"
            raise self._unavailable(f"no usable login mechanism; the upstream offers {names}")
        refusal = await log_in(self._protocol, credentials, mechanism, self._timeouts.auth_s, self._ruling)
        if refusal is not None:
            raise UpstreamUnavailable(refusal)
        self._on_step("login", mechanism.upper())

    def _tell_tls(self) -> None:
        if (secured := _ssl_of(self._protocol)) is not None:
            theirs: Mapping[str, Any] = secured.getpeercert() or {}
            left_ns = (_ends_at_ns(theirs) or 0) - self._clock.wall_ns()
            names = f"{_name_in(theirs, 'subject')} by {_name_in(theirs, 'issuer')}"
            words = f"{secured.version()} {(secured.cipher() or '?')[0]}, {names}"
            until = f"{left_ns // (86_400 * SECOND_NS)} days left (until {theirs.get('notAfter')})"
            self._on_step("tls", f"{words}, {until}")

    def _expect(self, reply: Reply, code: int) -> None:
        if reply.code != code:
            raise self._refused(reply)

    def _refused(self, reply: Reply) -> UpstreamUnavailable:
        ruling, phase = self._ruling(reply), self._protocol.phase
        return UpstreamUnavailable(Answer(ruling.verdict, phase, reply, str(reply), ruling=ruling))

    def _ruling(self, reply: Reply) -> Ruling:
        return self._account.judge.ruling(self._protocol.phase, reply)

    def _unavailable(self, text: str) -> UpstreamUnavailable:
        text = clean(f"{self._name}{self._from_source}: {text}")
        return UpstreamUnavailable(Answer(Verdict.PAUSE, self._protocol.phase, None, text))


def _trusting(ca_file: Path | None, pair: KeyPair | None) -> ssl.SSLContext:
    """Without a file, trust the system's authorities.  Raises SecretError, OSError."""
    return _context(ca_file, None if ca_file is None else read_authorities(ca_file), pair)


@functools.lru_cache(maxsize=16)
def _context(ca_file: Path | None, authorities: str | None, pair: KeyPair | None) -> ssl.SSLContext:
    if ca_file is None or authorities is None:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    else:
        context = client_context(ca_file, authorities)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # By default Python 3.13 refuses authorities without key identifiers, and trusts any certificate of the
    # owner's file, not only roots.  What is trusted must not depend on the version of Python.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if pair is not None:
        load_certificate(pair, context)
    return context


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _ssl_of(protocol: StrictProtocol) -> ssl.SSLObject | None:
    transport = protocol.transport
    return None if transport is None else transport.get_extra_info("ssl_object")


def _ends_at_ns(certificate: Mapping[str, Any]) -> int | None:
    try:
        return ssl.cert_time_to_seconds(str(certificate.get("notAfter"))) * SECOND_NS
    except ValueError:
        return None


def _name_in(certificate: Mapping[str, Any], whose: str) -> str:
    parts: Iterable[Iterable[tuple[str, str]]] = certificate.get(whose, ())
    by_key = {key: value for part in parts for key, value in part}
    return clean(by_key.get("commonName") or by_key.get("organizationName") or "?")


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the upstream's certificate cannot be verified: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)  # asyncio and uvloop have different texts
    return error.strerror or str(error) or type(error).__name__
