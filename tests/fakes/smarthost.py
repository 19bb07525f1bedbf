"""A smarthost for tests that follows a script, octet for octet.

    async with Smarthost(Script(rcpt=turns("250 ok", "550 5.1.1 who?"), eod=[b"25", CLOSE])) as host:
        ...connect to 127.0.0.1, host.port...
        await host.until(lambda: host.transactions)

Every phase has a *turn*: what the host says there. A turn is a text (CRLF is added), octets (sent as they
are), an act, or a sequence of these. Adjacent texts and octets leave in one segment. `turns(...)` gives one
turn after the other and then the default. A function gets the argument of the command. A phase without a
script answers as a proper server does.

The host is strict about its client. These raise AssertionError on exit: a command that does not end in CRLF,
a command sent before the reply to the last one (except after MAIL and RCPT if the host offers PIPELINING), a
path without brackets, a parameter of an extension that was not offered, mail without a login if the host has
accounts, a final dot without an accepted recipient, content in which a CR or LF stands alone or with octets
beyond ASCII that were not announced, and octets behind the final dot.
"""

import asyncio
import base64
import hmac
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self, cast

PATIENCE_S = 120.0
"""The time after which a wait counts as hung."""
LONGEST_COMMAND = 510
"""RFC 5321, 4.5.3.1.4: 512 octets with CRLF."""
LONGEST_WITH_PATH = 998
"""The limit for MAIL and RCPT: paths in use exceed the limit of RFC 5321, which asks to impose none."""
_ADDRESSED = re.compile(
    r'(?:FROM|TO):<(?P<path>(?:"(?:[^"\\]|\\.)*"|[^<>"\s])*)>(?P<parameters>(?: \S+)*)', re.IGNORECASE
)
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
_EXTENSION_OF = {
    "SIZE": "SIZE",
    "BODY": "8BITMIME",
    "SMTPUTF8": "SMTPUTF8",
    **dict.fromkeys(("RET", "ENVID", "NOTIFY", "ORCPT"), "DSN"),
}
"""For each parameter of MAIL and RCPT, the extension that has it."""
_BEARER = {
    "XOAUTH2": "user=([^\1]+)\1auth=Bearer ([!-~]+)\1\1",
    "OAUTHBEARER": "n,a=([^,\1]+),\1host=[^\1]+\1port=[0-9]+\1auth=Bearer ([!-~]+)\1\1",
}


@dataclass(frozen=True)
class Act:
    """A step of a turn other than saying something."""

    name: str


CLOSE = Act("close")
"""End the connection (FIN)."""
RESET = Act("reset")
"""End the connection with RST."""
HALF_CLOSE = Act("half-close")
"""Close the sending side, but go on reading."""
SILENCE = Act("silence")
"""Say nothing more; the connection stays until the client closes it."""
DEAF = Act("deaf")
"""Say nothing more and read nothing more."""
DEFAULT = Act("default")
"""Say what an unscripted host says."""
GAP = Act("gap")
"""Send what was said so far; the rest goes in another segment."""


@dataclass(frozen=True)
class Drip:
    """Octets sent one by one, each in its own segment."""

    octets: bytes


@dataclass(frozen=True)
class Until:
    """Waits until the test sets the event."""

    event: asyncio.Event


Step = str | bytes | Act | Drip | Until
Turn = Step | Sequence[Step]


class Turns:
    """Gives one turn after the other, over all connections; then the default."""

    def __init__(self, given: Sequence[Turn]) -> None:
        self._given = list(given)

    def take(self) -> Turn:
        return self._given.pop(0) if self._given else DEFAULT


def turns(*given: Turn) -> Turns:
    return Turns(given)


@dataclass(frozen=True)
class During:
    """A turn in the middle of the content, after this many octets of it."""

    octets: int
    turn: Turn


Scripted = Turn | Turns | Callable[[str], Turn]


@dataclass
class Script:
    """What the host says in each phase. None: the default."""

    connect: Scripted | None = None
    ehlo: Scripted | None = None
    starttls: Scripted | None = None
    auth: Scripted | None = None
    """The final reply, after the exchange of the mechanism."""
    challenge: Scripted | None = None
    """Each 334 of LOGIN and CRAM-MD5."""
    mail: Scripted | None = None
    rcpt: Scripted | None = None
    data: Scripted | None = None
    content: During | None = None
    eod: Scripted | None = None
    rset: Scripted | None = None
    quit: Scripted | None = None


def at(phase: str, turn: Scripted) -> Script:
    return Script(**{phase: turn})  # type: ignore[arg-type]  # a phase that takes any turn


def turn_of(scripted: Scripted | None, argument: str) -> Turn:
    if scripted is None:
        return DEFAULT
    if isinstance(scripted, Turns):
        return scripted.take()
    return scripted(argument) if callable(scripted) else scripted


@dataclass
class Recorded:
    """A transaction. A host lists the transactions whose final dot arrived."""

    session: "Session"
    reverse_path: str = ""
    parameters: list[str] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    """The accepted recipients."""
    began_ns: int = field(default_factory=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    """When MAIL came (boottime)."""
    raw: bytes = b""
    """The content as received, with its final dot."""
    said: bytes = b""
    """The reply to the final dot."""

    @property
    def content(self) -> bytes:
        """Return the content without dot-stuffing."""
        lines = self.raw.removesuffix(b".\r\n").split(b"\r\n")
        return b"\r\n".join(line[1:] if line.startswith(b".") else line for line in lines)

    @property
    def is_relayed(self) -> bool:
        """Return whether the client may believe that the message was accepted."""
        return self.said.startswith(b"250") and self.said.endswith(b"\r\n")


class ShownToken(NamedTuple):
    """An access token, and the user that the client names with it."""

    name: str
    token: str


class _Ended(Exception):  # noqa: N818 - it ends a session and is not an error
    """The connection is over."""


class _Reader(asyncio.StreamReader):
    """Gives all octets that arrived before the connection was reset."""

    def set_exception(self, exc: BaseException) -> None:
        del exc
        self.feed_eof()


class Session:
    """The server's side of one connection, and what it received."""

    def __init__(self, host: "Smarthost", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.commands: list[str] = []
        self.tls: str | None = None
        self.shown: bytes | None = None
        """The client's certificate, in DER."""
        self.user: str | None = None
        self.is_open = True
        self.is_cut = False
        """Whatever the client sent is lost, as far as it was not read."""
        self.writer = writer
        self.received = bytearray()
        """Every octet that was read."""
        self._host = host
        self._reader = reader
        self._buffer = bytearray()
        self._offered: set[str] = set()
        """The extensions that any reply to EHLO named."""
        self._is_logged_in = False
        self._transaction: Recorded | None = None
        self._note_tls()

    async def run(self) -> None:
        await self._say(self._host.script.connect, "", "220 fake.example ESMTP")
        while True:
            line = await self._read_line()
            self.commands.append(line)
            self._host.changed()
            verb, _, argument = line.partition(" ")
            if len(line) > (LONGEST_WITH_PATH if verb.upper() in {"MAIL", "RCPT"} else LONGEST_COMMAND):
                self._fault(f"a command line of {len(line) + 2} octets")
            await self._answer(verb.upper(), argument)

    async def _answer(self, verb: str, argument: str) -> None:
        script = self._host.script
        match verb:
            case "EHLO":
                self.drop()
                said = await self._say(script.ehlo, argument, self._greeting_lines())
                lines = said.decode(errors="replace").splitlines()
                self._offered.update(line[4:].split(" ")[0].upper() for line in lines)
            case "STARTTLS" if self._host.tls is not None:
                await self._start_tls()
            case "AUTH" if self._host.accounts is not None:
                await self._authenticate(argument)
            case "MAIL":
                await self._mail(argument)
            case "RCPT":
                await self._rcpt(argument)
            case "DATA":
                await self._data()
            case "RSET":
                self.drop()
                await self._say(script.rset, argument, "250 2.0.0 flushed")
            case "QUIT":
                await self._say(script.quit, argument, "221 2.0.0 bye")
                raise _Ended
            case _:
                await self._say(None, "", "500 5.5.2 what?")

    def drop(self) -> None:
        """End the transaction that is open, if any, without a final dot."""
        self._transaction = None

    async def take(self, recorded: Recorded) -> str:  # noqa: ARG002 - for those who count
        """Return the reply to the final dot of a message."""
        return "250 2.0.0 taken"

    def _fault(self, what: str) -> None:
        self._host.faults.append(what)

    def _greeting_lines(self) -> bytes:
        lines = ["fake.example", *self._host.extensions]
        if self._host.tls is not None and self.tls is None:
            lines.append("STARTTLS")
        if self._host.accounts is not None:
            lines.append("AUTH " + " ".join(self._host.mechanisms))
        return "".join(f"250-{line}\r\n" for line in lines[:-1]).encode() + f"250 {lines[-1]}\r\n".encode()

    async def _start_tls(self) -> None:
        said = await self._say(self._host.script.starttls, "", "220 2.0.0 go ahead")
        if not said.startswith(b"220") or self._host.tls is None:
            return
        try:
            await self.writer.start_tls(self._host.tls)
        except ssl.SSLError as error:
            raise _Ended from error
        self._note_tls()

    def _note_tls(self) -> None:
        ssl_object = self.writer.get_extra_info("ssl_object")
        if ssl_object is not None:
            self.tls = ssl_object.version()
            self.shown = ssl_object.getpeercert(binary_form=True)

    async def _authenticate(self, argument: str) -> None:
        mechanism, _, initial = argument.partition(" ")
        match mechanism.upper():
            case "PLAIN":
                sent = base64.b64decode(initial) if initial else await self._ask(b"")
                _, user, password = sent.split(b"\0")
                is_right = self._is_right(user, password)
            case "XOAUTH2" | "OAUTHBEARER":
                sent = base64.b64decode(initial) if initial else await self._ask(b"")
                token = _token_of(mechanism.upper(), sent)
                user = token.name.encode()
                is_right = self._host.is_token is not None and self._host.is_token(token)
                if not is_right:
                    # RFC 7628, 3.2.3: the server states the reason, and the client sends an empty answer.
                    await self._ask(b'{"status": "invalid_token"}')
            case "LOGIN":
                user, password = await self._ask(b"Username:"), await self._ask(b"Password:")
                is_right = self._is_right(user, password)
            case "EXTERNAL":
                user = base64.b64decode(initial)
                shown = self.writer.get_extra_info("ssl_object").getpeercert()
                is_right = bool(shown) and user.decode() in (self._host.accounts or {})
            case _:
                challenge = b"<1896.697170952@fake.example>"
                user, _, digest = (await self._ask(challenge)).rpartition(b" ")
                secret = (self._host.accounts or {}).get(user.decode(), "").encode()
                is_right = hmac.new(secret, challenge, "md5").hexdigest().encode() == digest
        if is_right:
            self.user = user.decode()
        argument = argument if initial else self.commands[-1]
        default = "235 2.7.0 welcome" if is_right else "535 5.7.8 wrong user or password"
        said = await self._say(self._host.script.auth, argument, default)
        self._is_logged_in = said.startswith(b"235")

    def _is_right(self, user: bytes, password: bytes) -> bool:
        return (self._host.accounts or {}).get(user.decode()) == password.decode()

    async def _ask(self, challenge: bytes) -> bytes:
        encoded = base64.b64encode(challenge).decode()
        await self._say(self._host.script.challenge, "", f"334 {encoded}")
        line = await self._read_line()
        self.commands.append(line)
        return base64.b64decode(line)

    def _addressed(self, argument: str, *, is_utf8: bool) -> tuple[str, list[str]]:
        """Return the path and the parameters of MAIL or RCPT."""
        if (found := _ADDRESSED.fullmatch(argument)) is None:
            self._fault(f"no path in brackets: {argument!r}")
            return "", []
        path, parameters = found["path"], found["parameters"].split()
        for each in parameters:
            if _EXTENSION_OF.get(each.partition("=")[0]) not in self._offered:
                self._fault(f"a parameter of an extension that was not offered: {each}")
        if not (path.isascii() or is_utf8 or "SMTPUTF8" in parameters):
            self._fault(f"an address beyond ASCII without SMTPUTF8: {path}")
        return path, parameters

    async def _mail(self, argument: str) -> None:
        self.drop()
        if self._host.accounts is not None and not self._is_logged_in:
            self._fault("MAIL without a login")
        path, parameters = self._addressed(argument, is_utf8=False)
        said = await self._say(self._host.script.mail, argument, "250 2.1.0 ok")
        if said.startswith(b"2"):
            self._transaction = Recorded(self, path, parameters)

    async def _rcpt(self, argument: str) -> None:
        transaction = self._transaction
        default = "503 5.5.1 MAIL first" if transaction is None else "250 2.1.5 ok"
        is_utf8 = transaction is None or "SMTPUTF8" in transaction.parameters
        path, _ = self._addressed(argument, is_utf8=is_utf8)
        said = await self._say(self._host.script.rcpt, argument, default)
        if said.startswith(b"2") and transaction is not None:
            transaction.recipients.append(path)

    async def _data(self) -> None:
        is_for_nobody = self._transaction is None or not self._transaction.recipients
        if is_for_nobody and not self._is_pipelining:
            self._fault("DATA without MAIL and an accepted RCPT")
        default = "554 5.5.1 no valid recipients" if is_for_nobody else "354 go ahead"
        said = await self._say(self._host.script.data, "", default)
        if not said.startswith(b"354"):
            return
        recorded = self._transaction or Recorded(self)
        recorded.raw = await self._read_content()
        self._transaction = None
        self._host.transactions.append(recorded)
        self._host.changed()
        if is_for_nobody:
            self._fault("a final dot for nobody")
        if not recorded.raw.count(b"\r\n") == recorded.raw.count(b"\r") == recorded.raw.count(b"\n"):
            self._fault("content in which a CR or LF stands alone")
        if not (recorded.raw.isascii() or "BODY=8BITMIME" in recorded.parameters):
            self._fault("8-bit content without BODY=8BITMIME")
        await self._say(self._host.script.eod, "", await self.take(recorded), recorded)

    async def _read_content(self) -> bytes:
        during = self._host.script.content
        content = bytearray(b"\r\n")
        searched = 0
        while (end := content.find(b"\r\n.\r\n", searched)) < 0:
            searched = max(0, len(content) - 4)
            if during is not None and len(content) >= during.octets:
                await self._say(during.turn, "", "")
                during = None
            content += await self._read()
        if len(content) > end + 5:
            self._fault(f"octets behind the final dot: {bytes(content[end + 5 :])!r}")
        return bytes(content[2 : end + 5])

    async def _read(self) -> bytes:
        chunk = await self._reader.read(1 << 16)
        if not chunk or self.is_cut:
            raise _Ended
        self.received += chunk
        self._host.changed()
        return chunk

    async def _read_line(self) -> str:
        while b"\n" not in self._buffer:
            self._buffer += await self._read()
        line, _, rest = bytes(self._buffer).partition(b"\n")
        may_go_on = self._is_pipelining and line[:4].upper() in (b"MAIL", b"RCPT")
        self._buffer[:] = rest if may_go_on else b""
        command = line.removesuffix(b"\r").decode(errors="replace")
        if not line.endswith(b"\r") or _CONTROL.search(command) or (rest and not self._buffer):
            self._fault(f"not one command: {line + rest!r}")
        return command

    @property
    def _is_pipelining(self) -> bool:
        return "PIPELINING" in self._host.extensions

    async def _say(
        self, scripted: Scripted | None, argument: str, default: str | bytes, recorded: Recorded | None = None
    ) -> bytes:
        """Take this phase's turn; return the octets that were said."""
        turn = turn_of(scripted, argument)
        said, pending = b"", b""
        for step in [turn] if isinstance(turn, Step) else turn:
            words = default if step is DEFAULT else step
            if isinstance(words, str | bytes):
                octets = words if isinstance(words, bytes) else words.encode() + b"\r\n"
                said, pending = said + octets, pending + octets
                continue
            await self._send(pending)
            pending = b""
            if recorded is not None:
                recorded.said = said  # before an act that ends the session
            if isinstance(words, Drip):
                said += words.octets
            await self._act(words)
        if recorded is not None:
            recorded.said = said
        await self._send(pending)
        return said

    async def _send(self, octets: bytes) -> None:
        if octets:
            self.writer.write(octets)
            await self.writer.drain()

    async def _act(self, act: Act | Drip | Until) -> None:
        match act:
            case Drip(octets=octets):
                for index in range(len(octets)):
                    await self._send(octets[index : index + 1])
                    await asyncio.sleep(0)
            case Until(event=event):
                await event.wait()
            case Act(name="gap"):
                await asyncio.sleep(0)
            case Act(name="close"):
                self.writer.close()
                await self.writer.wait_closed()
                raise _Ended
            case Act(name="reset"):
                self._reset()
            case Act(name="half-close"):
                self.writer.write_eof()
                await self._drop_the_rest()
            case Act(name="silence"):
                await self._drop_the_rest()
            case _:
                cast("asyncio.Transport", self.writer.transport).pause_reading()
                await asyncio.Event().wait()

    async def _drop_the_rest(self) -> None:
        while True:
            await self._read()

    def _reset(self) -> None:
        connection: socket.socket = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        raise _Ended


def _token_of(mechanism: str, said: bytes) -> ShownToken:
    """Parse a response of XOAUTH2 or OAUTHBEARER (RFC 7628, 3.1), as strictly as Dovecot does."""
    found = re.fullmatch(_BEARER[mechanism], said.decode())
    assert found is not None, f"no response of {mechanism}: {said!r}"
    name, token = found.groups()
    # RFC 5801, 4: OAUTHBEARER escapes the name.
    return ShownToken(name if mechanism == "XOAUTH2" else name.replace("=2C", ",").replace("=3D", "="), token)


class Smarthost:
    """A server on loopback; `async with` starts and stops it."""

    session_type: ClassVar[type[Session]] = Session
    address = "127.0.0.1"
    EXTENSIONS: ClassVar = ("8BITMIME", "SMTPUTF8", "SIZE 100000000", "ENHANCEDSTATUSCODES", "PIPELINING")

    def __init__(
        self,
        script: Script | None = None,
        *,
        extensions: Sequence[str] | None = None,
        tls: ssl.SSLContext | None = None,
        is_implicit: bool = False,
        accounts: Mapping[str, str] | None = None,
        mechanisms: Sequence[str] = ("PLAIN", "LOGIN", "CRAM-MD5"),
        is_token: Callable[[ShownToken], bool] | None = None,
    ) -> None:
        self.script = script or Script()
        self.extensions = self.EXTENSIONS if extensions is None else tuple(extensions)
        self.transactions: list[Recorded] = []
        self.sessions: list[Session] = []
        self.faults: list[str] = []
        self.port = 0
        self.tls = tls
        self.is_implicit = is_implicit
        self.accounts = {} if is_token and accounts is None else accounts
        self.is_token = is_token
        """Tells whether an access token logs in. None: no token does."""
        self.mechanisms = tuple(mechanisms)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def relayed(self) -> list[Recorded]:
        """Return the transactions that the client may believe were accepted."""
        return [transaction for transaction in self.transactions if transaction.is_relayed]

    @property
    def commands(self) -> list[str]:
        return [command for session in self.sessions for command in session.commands]

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        context = self.tls if self.is_implicit else None

        def protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(_Reader(loop=loop), self._connected, loop=loop)

        self._server = await loop.create_server(protocol, self.address, self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.stop()
        if error is None and self.faults:
            raise AssertionError(f"the client broke the protocol: {self.faults}")

    async def stop(self) -> None:
        """End every session and stop listening; the port refuses connections from now on."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds; it is checked after every event of this host."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def say(self, octets: bytes) -> None:
        for session in self.sessions:
            if session.is_open:
                session.writer.write(octets)

    def hang_up(self) -> None:
        for session in self.sessions:
            if session.is_open:
                session.writer.close()

    def changed(self) -> None:
        """Wake the callers of `until`."""
        self._changed.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._tasks.add(task)
        session = self.session_type(self, reader, writer)
        self.sessions.append(session)
        try:
            await session.run()
        except (_Ended, OSError, asyncio.CancelledError):
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the test that caused it must fail
            self.faults.append(repr(error))
        finally:
            session.is_open = False
            writer.transport.abort()
            self._tasks.discard(task)
            self.changed()
