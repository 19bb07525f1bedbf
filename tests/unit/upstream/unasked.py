"""An upstream that says more than it was asked, and knows by its own ledger what became of whom.

A reply that nobody asked for goes out in front of the reply to some command; that one, and all
behind it, are then held back until the next command arrives (`is_late`), as where the unasked
one and the next command pass each other on the way.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

HELLO = b"250-unasked.example\r\n250-8BITMIME\r\n"


@dataclass(frozen=True)
class Unasked:
    """What is said beside what is due, in front of the reply to a command."""

    command: int
    """Which of the connection, EHLO being the first: 0."""
    said: str
    """Empty: the reply itself, a second time."""
    is_late: bool = True


@dataclass
class Truth:
    """What the upstream means, whatever it says."""

    mail: str = "250 2.1.0 ok"
    rcpt: Mapping[str, str] = field(default_factory=dict)
    dot: str = "250 2.0.0 taken"


class UnaskedHost:
    """A server on 127.0.0.1; only its first connection hears what it did not ask for."""

    def __init__(self, truth: Truth, unasked: Sequence[Unasked], *, pipelines: bool) -> None:
        self.truth = truth
        self.port = 0
        self.relayed: list[tuple[str, ...]] = []
        """The recipients of each transaction whose dot was meant to be answered by 250."""
        self.commands: list[str] = []
        self._unasked = {each.command: each for each in unasked}
        self._pipelines = pipelines
        self._sessions: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["UnaskedHost"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for session in self._sessions:
                session.cancel()
            await asyncio.gather(*self._sessions, return_exceptions=True)

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        unasked, self._unasked = self._unasked, {}
        session = asyncio.create_task(self._session(reader, writer, unasked))
        self._sessions.add(session)
        session.add_done_callback(self._sessions.discard)

    async def _session(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, unasked: Mapping[int, Unasked]
    ) -> None:
        replies: deque[bytes] = deque()
        held = 0
        count = 0
        envelope: list[str] = []
        has_mail = False
        writer.write(b"220 unasked.example ESMTP\r\n")
        try:
            while line := await reader.readline():
                command = line.decode().rstrip("\r\n")
                verb = command[:4].upper()
                self.commands.append(command)
                if verb in ("EHLO", "RSET", "MAIL"):
                    envelope, has_mail = [], verb == "MAIL" and self.truth.mail.startswith("250")
                reply = self._reply(verb, command, envelope, has_mail=has_mail)
                held += _say(unasked.get(count), reply, replies)
                count += 1
                _flush(writer, replies, held)
                if reply.startswith("354"):
                    while (await reader.readline()) not in (b".\r\n", b""):
                        pass
                    self.commands.append(".")
                    if self.truth.dot.startswith("250"):
                        self.relayed.append(tuple(envelope))
                    envelope, has_mail = [], False
                    # What is 250 here, by all that can be seen, is the reply to the dot.
                    stray = unasked.get(count)
                    is_seen = stray is None or not stray.said.startswith("250")
                    held += _say(stray if is_seen else None, self.truth.dot, replies)
                    count += 1
                    _flush(writer, replies, held)
                if verb == "QUIT":
                    break
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _reply(self, verb: str, command: str, envelope: list[str], *, has_mail: bool) -> str:
        match verb:
            case "EHLO":
                return HELLO.decode() + ("250-PIPELINING\r\n" if self._pipelines else "") + "250 SIZE"
            case "MAIL":
                return self.truth.mail
            case "RCPT" if has_mail:
                address = command.partition("<")[2].rstrip(">")
                said = self.truth.rcpt.get(address, "250 2.1.5 ok")
                if said.startswith("250"):
                    envelope.append(address)
                return said
            case "DATA" if envelope:
                return "354 go ahead"
            case "DATA":
                return "554 5.5.1 no valid recipients"
            case "RSET" | "NOOP":
                return "250 2.0.0 ok"
            case "QUIT":
                return "221 2.0.0 bye"
            case _:
                return "503 5.5.1 what?"


def _say(unasked: Unasked | None, reply: str, replies: deque[bytes]) -> int:
    """Line up what is said to a command; return how many replies more are held back from now on."""
    if unasked is not None:
        replies.append(f"{unasked.said or reply}\r\n".encode())
    replies.append(f"{reply}\r\n".encode())
    return 1 if unasked is not None and unasked.is_late else 0


def _flush(writer: asyncio.StreamWriter, replies: deque[bytes], held: int) -> None:
    while len(replies) > held:
        writer.write(replies.popleft())
