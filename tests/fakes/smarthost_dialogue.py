"""The fake smarthost's side of one connection (see `tests.fakes.smarthost`)."""

import asyncio
import base64
import hmac
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, cast

from tests.fakes.smarthost_script import DEFAULT, Act, Drip, Script, Scripted, Step, Until, turn_of


@dataclass
class Recorded:
    """A transaction whose final dot arrived."""

    reverse_path: str
    parameters: list[str]
    recipients: list[str]
    """Those that were not refused."""
    content: bytes
    """Without the stuffed dots."""
    raw: bytes
    """As it came, with its final dot."""
    session: "Session"
    said: bytes = b""
    """What was said to the dot."""

    @property
    def is_relayed(self) -> bool:
        """Whether a client has a right to believe that it was taken."""
        return self.said.startswith(b"250") and self.said.endswith(b"\r\n")


@dataclass(eq=False)
class Session:
    """One connection, as it was seen from here."""

    commands: list[str] = field(default_factory=list)
    tls: str | None = None
    shown: bytes | None = None
    """The certificate of the client, in DER."""
    user: str | None = None
    is_open: bool = True
    writer: asyncio.StreamWriter | None = None
    received: bytearray = field(default_factory=bytearray)
    """Every octet that was read."""


class ShownToken(NamedTuple):
    """An access token, and the user it is said to be of."""

    name: str
    token: str


@dataclass
class _Envelope:
    reverse_path: str = ""
    parameters: list[str] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)


LONGEST_COMMAND = 510
"""RFC 5321, 4.5.3.1.4: 512 octets with CRLF."""
LONGEST_WITH_PATH = 998
"""Of MAIL and RCPT: paths in use are longer than RFC 5321 says, and it asks to impose no limit."""


class Ended(Exception):  # noqa: N818 - it ends a session, and is no error
    """The connection is over."""


class Host(Protocol):
    """What a dialogue needs of the host."""

    script: Script
    extensions: tuple[str, ...]
    tls: ssl.SSLContext | None
    accounts: Mapping[str, str] | None
    mechanisms: tuple[str, ...]
    is_token: Callable[[ShownToken], bool] | None
    """Whether an access token logs in; None: it does that is the password of an account."""
    transactions: list[Recorded]
    faults: list[str]

    def changed(self) -> None: ...


class Dialogue:
    """The server's side of one connection."""

    def __init__(
        self, host: Host, session: Session, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._host = host
        self._session = session
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()
        self._envelope: _Envelope | None = None
        self._note_tls()

    async def run(self) -> None:
        await self._say(self._host.script.connect, "", "220 fake.example ESMTP")
        while True:
            line = await self._read_line()
            self._session.commands.append(line)
            self._host.changed()
            verb, _, argument = line.partition(" ")
            if len(line) > (LONGEST_WITH_PATH if verb.upper() in {"MAIL", "RCPT"} else LONGEST_COMMAND):
                self._host.faults.append(f"a command line of {len(line) + 2} octets")
            await self._answer(verb.upper(), argument)

    async def _answer(self, verb: str, argument: str) -> None:
        script = self._host.script
        match verb:
            case "EHLO":
                self._envelope = None
                await self._say(script.ehlo, argument, self._greeting_lines())
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
                self._envelope = None
                await self._say(script.rset, argument, "250 2.0.0 flushed")
            case "QUIT":
                await self._say(script.quit, argument, "221 2.0.0 bye")
                raise Ended
            case _:
                await self._say(None, "", "500 5.5.2 what?")

    def _greeting_lines(self) -> bytes:
        lines = ["fake.example", *self._host.extensions]
        if self._host.tls is not None and self._session.tls is None:
            lines.append("STARTTLS")
        if self._host.accounts is not None:
            lines.append("AUTH " + " ".join(self._host.mechanisms))
        return "".join(f"250-{line}\r\n" for line in lines[:-1]).encode() + f"250 {lines[-1]}\r\n".encode()

    async def _start_tls(self) -> None:
        said = await self._say(self._host.script.starttls, "", "220 2.0.0 go ahead")
        if not said.startswith(b"220") or self._host.tls is None:
            return
        try:
            await self._writer.start_tls(self._host.tls)
        except ssl.SSLError as error:
            raise Ended from error
        self._note_tls()

    def _note_tls(self) -> None:
        ssl_object = self._writer.get_extra_info("ssl_object")
        if ssl_object is not None:
            self._session.tls = ssl_object.version()
            self._session.shown = ssl_object.getpeercert(binary_form=True)

    async def _authenticate(self, argument: str) -> None:
        mechanism, _, initial = argument.partition(" ")
        match mechanism.upper():
            case "PLAIN":
                sent = base64.b64decode(initial) if initial else await self._ask(b"")
                _, user, password = sent.split(b"\0")
                is_right = self._is_right(user, password)
            case "XOAUTH2" | "OAUTHBEARER":
                sent = base64.b64decode(initial) if initial else await self._ask(b"")
                token = _token_of(sent)
                user, is_right = token.name.encode(), self._is_good(token)
                if not is_right:
                    # RFC 7628, 3.2.3: why, and an answer that says nothing.
                    await self._ask(b'{"status": "invalid_token"}')
            case "LOGIN":
                user, password = await self._ask(b"Username:"), await self._ask(b"Password:")
                is_right = self._is_right(user, password)
            case "EXTERNAL":
                user = base64.b64decode(initial)
                shown = self._writer.get_extra_info("ssl_object").getpeercert()
                is_right = bool(shown) and user.decode() in (self._host.accounts or {})
            case _:
                challenge = b"<1896.697170952@fake.example>"
                user, _, digest = (await self._ask(challenge)).rpartition(b" ")
                secret = (self._host.accounts or {}).get(user.decode(), "").encode()
                is_right = hmac.new(secret, challenge, "md5").hexdigest().encode() == digest
        if is_right:
            self._session.user = user.decode()
        argument = argument if initial else self._session.commands[-1]
        default = "235 2.7.0 welcome" if is_right else "535 5.7.8 wrong user or password"
        await self._say(self._host.script.auth, argument, default)

    def _is_right(self, user: bytes, password: bytes) -> bool:
        return (self._host.accounts or {}).get(user.decode()) == password.decode()

    def _is_good(self, token: ShownToken) -> bool:
        if self._host.is_token is not None:
            return self._host.is_token(token)
        return (self._host.accounts or {}).get(token.name) == token.token

    async def _ask(self, challenge: bytes) -> bytes:
        encoded = base64.b64encode(challenge).decode()
        await self._say(self._host.script.challenge, "", f"334 {encoded}")
        line = await self._read_line()
        self._session.commands.append(line)
        return base64.b64decode(line)

    async def _mail(self, argument: str) -> None:
        path, _, parameters = argument.removeprefix("FROM:").partition("> ")
        said = await self._say(self._host.script.mail, argument, "250 2.1.0 ok")
        if said.startswith(b"2"):
            self._envelope = _Envelope(path.strip("<>"), parameters.split())

    async def _rcpt(self, argument: str) -> None:
        default = "503 5.5.1 MAIL first" if self._envelope is None else "250 2.1.5 ok"
        said = await self._say(self._host.script.rcpt, argument, default)
        if said.startswith(b"2") and self._envelope is not None:
            path = argument.removeprefix("TO:").partition("> ")[0]
            self._envelope.recipients.append(path.strip("<>"))

    async def _data(self) -> None:
        is_for_nobody = self._envelope is None or not self._envelope.recipients
        if is_for_nobody and not self._is_pipelining:
            self._host.faults.append("DATA without MAIL and an accepted RCPT")
        default = "554 5.5.1 no valid recipients" if is_for_nobody else "354 go ahead"
        said = await self._say(self._host.script.data, "", default)
        if not said.startswith(b"354"):
            return
        envelope, self._envelope = self._envelope or _Envelope(), None
        raw = await self._read_content()
        recorded = Recorded(
            envelope.reverse_path,
            envelope.parameters,
            envelope.recipients,
            _unstuffed(raw),
            raw,
            self._session,
        )
        self._host.transactions.append(recorded)
        self._host.changed()
        if is_for_nobody:
            self._host.faults.append("a final dot for nobody")
        await self._say(self._host.script.eod, "", "250 2.0.0 taken", recorded)

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
            self._host.faults.append(f"octets behind the final dot: {bytes(content[end + 5 :])!r}")
        return bytes(content[2 : end + 5])

    async def _read(self) -> bytes:
        chunk = await self._reader.read(1 << 16)
        if not chunk:
            raise Ended
        self._session.received += chunk
        self._host.changed()
        return chunk

    async def _read_line(self) -> str:
        while b"\n" not in self._buffer:
            self._buffer += await self._read()
        line, _, rest = bytes(self._buffer).partition(b"\n")
        may_go_on = self._is_pipelining and line[:4].upper() in (b"MAIL", b"RCPT")
        self._buffer[:] = rest if may_go_on else b""
        if not line.endswith(b"\r") or b"\r" in line[:-1] or b"\0" in line or (rest and not self._buffer):
            self._host.faults.append(f"not one command: {line + rest!r}")
        return line.rstrip(b"\r").decode(errors="replace")

    @property
    def _is_pipelining(self) -> bool:
        return "PIPELINING" in self._host.extensions

    async def _say(
        self, scripted: Scripted | None, argument: str, default: str | bytes, recorded: Recorded | None = None
    ) -> bytes:
        """Take this phase's turn; return what was said."""
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
            self._writer.write(octets)
            await self._writer.drain()

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
                self._writer.close()
                await self._writer.wait_closed()
                raise Ended
            case Act(name="reset"):
                self._reset()
            case Act(name="half-close"):
                self._writer.write_eof()
                await self._drop_the_rest()
            case Act(name="silence"):
                await self._drop_the_rest()
            case _:
                cast("asyncio.Transport", self._writer.transport).pause_reading()
                await asyncio.Event().wait()

    async def _drop_the_rest(self) -> None:
        while True:
            await self._read()

    def _reset(self) -> None:
        connection: socket.socket = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        raise Ended


def _token_of(said: bytes) -> ShownToken:
    """Take a response of XOAUTH2, or of OAUTHBEARER (RFC 7628, 3.1), apart."""
    head, _, rest = said.decode().partition("\1")
    name = (
        head.removeprefix("user=") if head.startswith("user=") else head.partition(",a=")[2].removesuffix(",")
    )
    # RFC 5801, 4.
    name = name.replace("=2C", ",").replace("=3D", "=") if head.startswith("n,") else name
    return ShownToken(name, rest.partition("auth=Bearer ")[2].rstrip("\1"))


def _unstuffed(raw: bytes) -> bytes:
    lines = raw.removesuffix(b".\r\n").split(b"\r\n")
    return b"\r\n".join(line[1:] if line.startswith(b".") else line for line in lines)
