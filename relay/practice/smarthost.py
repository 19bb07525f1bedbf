"""The practice smarthost: an SMTP server with one account and one limit, which it counts by its own clock.

A message counts when its final dot arrives.  The window is half-open: `(t - T, t]` for any t, so two messages
exactly T apart never share a window.  A client that exceeds the limit is cut off for a while: the smarthost
refuses every message then, and counts none.  It relays nothing; it writes messages to the folder `keep`.
Guarantees: mail needs AUTH.  Lines end in CRLF, and content ends only at CRLF.CRLF.  Memory holds at most
MOST_CONNECTIONS, each with MAX_CONTENT_BYTES, and an instant for each message of one window.
Assumes: one event loop.  Does not: share code with `relay.throttle`, since it has to show that code's errors.
"""

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

from relay.clock import Clock
from relay.policy.lane import LimitSettings
from relay.policy.units import HostPort
from relay.smtp import replies
from relay.smtp.commands import MailTransaction
from relay.smtp.sasl import Credentials, PasswordCheck
from relay.smtp.session_machine import ServerTerms, SessionMachine, SessionState

HOSTNAME = "practice.invalid"
"""RFC 6761, 6.4: a name that never exists, since this host needs none."""
MAX_LINE_BYTES = 1024 * 1024
MAX_CONTENT_BYTES = 64 * 1024 * 1024
MOST_CONNECTIONS = 50
_TERMS = ServerTerms(HOSTNAME, MAX_CONTENT_BYTES, 1000, mechanisms=("PLAIN", "LOGIN"), has_dsn=False)


class PracticeAccount:
    """Counts messages against the limit; without I/O."""

    def __init__(self, limit: LimitSettings, cut_off_ns: int) -> None:
        self.limit = limit
        self.relayed = 0
        self.refused = 0
        self.cut_offs = 0
        self.most = 0
        """How much the fullest window held so far, in the limit's unit."""
        self._cut_off_ns = cut_off_ns
        self._cut_off_until_ns = 0
        self._window: deque[tuple[int, int]] = deque()
        """For each message: its instant, and how much it counts."""

    def admit(self, recipients: int, now_ns: int) -> bool:
        if now_ns >= self._cut_off_until_ns and self._count(recipients, now_ns) <= self.limit.count:
            self.relayed += 1
            return True
        if now_ns >= self._cut_off_until_ns:
            self._cut_off_until_ns = now_ns + self._cut_off_ns
            self.cut_offs += 1
        self.refused += 1
        return False

    def _count(self, recipients: int, now_ns: int) -> int:
        while self._window and self._window[0][0] <= now_ns - self.limit.per_ns:
            self._window.popleft()
        self._window.append((now_ns, recipients if self.limit.unit == "recipients" else 1))
        held = sum(counted for _, counted in self._window)
        self.most = max(self.most, held)
        return held


class PracticeMessage(NamedTuple):
    """A message whose final dot arrived."""

    at_ns: int
    """When the final dot arrived, by the clock of the smarthost."""
    reverse_path: str
    recipients: tuple[str, ...]
    reply: str


class PracticeSmarthost:
    def __init__(
        self,
        address: HostPort,
        credentials: Credentials,
        account: PracticeAccount,
        clock: Clock,
        *,
        keep: Path | None = None,
        observer: Callable[[PracticeMessage], object] = lambda _: None,
    ) -> None:
        """Make the folder `keep`.  Raises OSError, and ValueError if the address is not loopback."""
        if not address.is_loopback:
            raise ValueError(f"{address}: a practice smarthost listens on loopback only")
        self._address = address
        self._credentials = credentials
        self.account = account
        self._clock = clock
        self._keep = keep
        self._kept = 0 if keep is None else _last_kept(keep)
        self._observer = observer
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = address.port
        """If the address says 0, the kernel chooses the port in `start`."""

    async def start(self) -> None:
        """Raise OSError if the address is taken."""
        self._server = await asyncio.start_server(
            self._serve, self._address.host, self._address.port, limit=MAX_LINE_BYTES
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for conversation in self._open:
            conversation.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        conversation = cast("asyncio.Task[None]", asyncio.current_task())
        self._open.add(conversation)
        try:
            # A client gets no reply if it is gone, sends a line without end, or is cut off by `close`.
            with contextlib.suppress(EOFError, OSError, asyncio.LimitOverrunError, asyncio.CancelledError):
                await self._converse(reader, writer)
        finally:
            self._open.discard(conversation)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        machine = SessionMachine(_TERMS, self, is_trusted=False, is_private=True, is_tls=False)
        reply = f"220 {HOSTNAME} ESMTP practice smarthost"
        while True:
            writer.write(f"{reply}\r\n".encode("ascii"))
            await writer.drain()
            if machine.state is SessionState.OVER:
                return
            if machine.transaction is not None and machine.state is SessionState.CONTENT:
                transaction, content = machine.transaction, await _content(reader)
                machine.go_on()
                reply = self._decide(transaction, content)
                continue
            line = (await reader.readuntil(b"\r\n"))[:-2]
            reply = machine.take(line) if machine.takes_commands else machine.respond(line)
            if machine.proof is not None:
                is_right = self._credentials.are_proven_by(machine.proof)
                reply = machine.judged(PasswordCheck.RIGHT if is_right else PasswordCheck.WRONG)

    # Called by the session machine.

    def sender_refusal(self, reverse_path: str, size_bytes: int) -> str | None:  # noqa: ARG002 - every sender may
        return None

    def _decide(self, transaction: MailTransaction, content: bytes) -> str:
        """Count a message and return the reply to its final dot."""
        now_ns = self._clock.boottime_ns()
        recipients = tuple(transaction.recipients)
        if not self.account.admit(len(recipients), now_ns):
            reply = f"550 5.7.1 You have exceeded your sending limit of {self.account.limit.label}"
        elif len(content) > MAX_CONTENT_BYTES:
            reply = replies.TOO_BIG
        else:
            reply = self._take(content)
        self._observer(PracticeMessage(now_ns, transaction.reverse_path, recipients, reply))
        return reply

    def _take(self, content: bytes) -> str:
        if self._keep is not None:
            try:
                # Without a sync and on the loop: nothing is promised about these files.
                (self._keep / f"{self._kept + 1:06}.eml").write_bytes(content)
            except OSError as error:
                return f"452 4.3.1 Cannot keep the message: {error.strerror}"
        self._kept += 1
        return f"250 2.0.0 Ok: practised as {self._kept}"


async def _content(reader: asyncio.StreamReader) -> bytes:
    """Return the content up to its final dot; if it is too large, a little more than MAX_CONTENT_BYTES."""
    content = bytearray()
    while (line := await reader.readuntil(b"\r\n")) != b".\r\n":
        if len(content) <= MAX_CONTENT_BYTES:
            content += line.removeprefix(b".")
    return bytes(content)


def _last_kept(folder: Path) -> int:
    """Make the folder, and return the highest number in it, so that no file is overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    names = (re.fullmatch(r"([0-9]+)\.eml", path.name) for path in folder.iterdir())
    return max((int(name[1]) for name in names if name), default=0)
