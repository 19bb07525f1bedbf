"""A smarthost that does what its script says, byte for byte; for tests.

    async with Smarthost(Script(rcpt=turns("250 ok", "550 5.1.1 who?"), eod=[b"25", CLOSE])) as host:
        ...connect to 127.0.0.1, host.port...
        await host.until(lambda: host.transactions)

Every phase has a *turn*: what is said there.  A turn is a text (CRLF is added), octets
(sent as they are), an act, or a sequence of these; texts and octets that follow each
other leave in one segment.  `turns(...)` gives one turn after the other and then the
default; a function is given the argument of the command.  A phase that the script does
not name is done properly.

It is strict about its client: a command that does not end in CRLF, a command sent before the reply
to the last one (but behind MAIL and RCPT where it offers PIPELINING), a dot for nobody, or octets
behind the final dot raise AssertionError on exit.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Self

from tests.fakes.smarthost_dialogue import Dialogue, Ended, Recorded, Session, ShownToken
from tests.fakes.smarthost_script import (
    CLOSE,
    DEAF,
    DEFAULT,
    GAP,
    HALF_CLOSE,
    RESET,
    SILENCE,
    Drip,
    During,
    Script,
    Scripted,
    Step,
    Turn,
    Until,
    at,
    turns,
)

__all__ = [
    "CLOSE",
    "DEAF",
    "DEFAULT",
    "GAP",
    "HALF_CLOSE",
    "RESET",
    "SILENCE",
    "Drip",
    "During",
    "Recorded",
    "Script",
    "Scripted",
    "Session",
    "Smarthost",
    "Step",
    "Turn",
    "Until",
    "at",
    "turns",
]

PATIENCE_S = 120.0
"""How long something may take before it counts as hung."""


class Smarthost:
    """A server on 127.0.0.1; `async with` starts and stops it."""

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
        self.mechanisms = tuple(mechanisms)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def relayed(self) -> list[Recorded]:
        """Return the transactions that a client has a right to believe were taken."""
        return [transaction for transaction in self.transactions if transaction.is_relayed]

    @property
    def commands(self) -> list[str]:
        return [command for session in self.sessions for command in session.commands]

    async def __aenter__(self) -> Self:
        context = self.tls if self.is_implicit else None
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if error is None and self.faults:
            raise AssertionError(f"the client broke the protocol: {self.faults}")

    async def stop(self) -> None:
        """End every session and stop listening; the port refuses from now on."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is true of this host; looks again whenever something happened."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def say(self, octets: bytes) -> None:
        for session in self.sessions:
            if session.is_open and session.writer is not None:
                session.writer.write(octets)

    def hang_up(self) -> None:
        for session in self.sessions:
            if session.is_open and session.writer is not None:
                session.writer.close()

    def changed(self) -> None:
        """Tell those who wait in `until`."""
        self._changed.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        session = Session(writer=writer)
        self.sessions.append(session)
        dialogue = Dialogue(self, session, reader, writer)
        try:
            await dialogue.run()
        except (Ended, OSError, asyncio.CancelledError):
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the test that caused it must fail
            self.faults.append(repr(error))
        finally:
            session.is_open = False
            writer.transport.abort()
            if task is not None:
                self._tasks.discard(task)
            self.changed()
