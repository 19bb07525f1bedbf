"""A strict upstream: it enforces one limit, cuts off a client that exceeds it, replies late, and records all.

It counts and records each transaction once that came to its final dot, whether the client waits for the reply
or is gone, and each that is abandoned after MAIL.  The instant that counts is drawn between MAIL and reply.
The protocol is strict too: only CRLF ends a line, mail needs AUTH, a path has brackets, a parameter must have
been offered, and 8-bit content announced.

Call `seen()` once it is stopped or idle; read its counters at any time.
"""

import asyncio
import base64
import binascii
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from tests.system.waiting import HANG_S, free_port, wait_until
from tests.system.witness import SECOND_NS, Fate, Seen, Witness

T = TypeVar("T")
USER, PASSWORD = "mjd", "correct horse"
REFUSALS = {"bad": "550 5.1.1 nobody of that name", "stay": "450 4.2.0 come again"}
TURNS_TO_READ = 10
"""Turns of the loop: the first reads the octets in our sockets, the next few answer them."""
LONGEST_COMMAND = 12_288
"""Octets that a line of AUTH may need (RFC 4954, 4)."""
LARGEST = 64 * 1024 * 1024
OFFERS = ("PIPELINING", f"SIZE {LARGEST}", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES")
OTHERS = {"NOOP": "250 2.0.0 Ok", "QUIT": "221 2.0.0 Bye"}
BAD_ORDER, WRONG = "503 5.5.1 Bad sequence of commands", "535 5.7.8 Wrong"
_PATH = r'<(?P<path>(?:"(?:[^"\\]|\\.)*"|[^<>"\s])*)>(?P<parameters>(?: \S+)*)'
_MAIL, _RCPT = re.compile("FROM:" + _PATH, re.IGNORECASE), re.compile("TO:" + _PATH, re.IGNORECASE)
_PARAMETER = re.compile("SIZE=[0-9]{1,20}|BODY=(7BIT|8BITMIME)|SMTPUTF8")
"""A parameter of MAIL of an offered extension."""
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class _Transaction:
    def __init__(self, reverse_path: str, parameters: set[str]) -> None:
        self.mail_at_ns = boottime_ns()
        self.reverse_path = reverse_path
        self.recipients: list[str] = []
        self.takes_utf8 = "SMTPUTF8" in parameters
        self.takes_8bit = "BODY=8BITMIME" in parameters

    def fault(self, content: bytes) -> str | None:
        if not content.count(b"\r\n") == content.count(b"\r") == content.count(b"\n"):
            return "550 5.6.0 A CR or LF stands alone (RFC 5321, 2.3.8)"
        if not (content.isascii() or self.takes_8bit):
            return "554 5.6.1 8-bit content without BODY=8BITMIME (RFC 6152)"
        return None


class _Session(asyncio.Protocol):
    """One connection.  The octets of a client that died are read to their end, unless the line was cut."""

    transport: asyncio.Transport

    def __init__(self, host: "StrictSmarthost") -> None:
        self.held_mail_at_ns: int | None = None
        """When MAIL came of the message whose final reply is held back."""
        self._host = host
        self._buffer = bytearray()
        self._more = asyncio.Event()
        self._is_over = self._is_greeted = self._is_known = False
        self._transaction: _Transaction | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._host.began(self, asyncio.get_running_loop().create_task(self._converse()))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_over = True
        self._more.set()

    def cut(self) -> None:
        """Cut the connection at once; a message whose final dot came is decided all the same."""
        self._buffer.clear()
        self.transport.abort()

    async def _converse(self) -> None:
        try:
            self._say("220 strict.invalid ESMTP")
            while (line := await self._next(b"\r\n", LONGEST_COMMAND)) is not None:
                reply = await self._answer(line)
                self._say(reply)
                if reply[:3] in ("221", "421"):
                    break
        finally:
            self._abandon()
            self.transport.close()

    async def _next(self, end: bytes, most: int = LARGEST) -> bytes | None:
        """Return the octets before `end`; None if the client is gone or sent more than `most` without it."""
        while (at := self._buffer.find(end)) < 0:
            if self._is_over or len(self._buffer) > most:
                return None
            self._more.clear()
            await self._more.wait()
        taken = bytes(self._buffer[:at])
        del self._buffer[: at + len(end)]
        return taken

    def _say(self, *lines: str) -> None:
        if not self.transport.is_closing():
            self.transport.write("".join(f"{line}\r\n" for line in lines).encode("utf-8", "surrogateescape"))

    async def _answer(self, line: bytes) -> str:
        verb, _, argument = line.decode("utf-8", "surrogateescape").partition(" ")
        if (reply := self._why_not_now(verb.upper(), line)) is not None:
            return reply
        match verb.upper(), self._transaction:
            case "EHLO" | "HELO", _:
                reply = self._greet(verb.upper(), argument)
            case "AUTH", _:
                reply = await self._authenticate(*argument.split(" "))
            case "MAIL", _:
                reply = self._begin(argument)
            case "RCPT", _Transaction() as transaction:
                reply = self._add(transaction, argument)
            case "DATA", _Transaction() as transaction:
                reply = await self._take(transaction)
            case "RSET", _:
                reply = self._abandon()
            case _:
                reply = OTHERS.get(verb.upper(), "502 5.5.1 Command not recognized")
        return reply

    def _why_not_now(self, verb: str, line: bytes) -> str | None:
        if _CONTROL.search(line):
            return "554 5.6.0 A control character in a command"
        if verb in {"MAIL", "RCPT", "DATA"} and not self._is_known:
            return "530 5.7.0 Authentication required" if self._is_greeted else BAD_ORDER
        is_open = self._transaction is not None
        if (verb in {"MAIL", "AUTH"} and is_open) or (verb in {"RCPT", "DATA"} and not is_open):
            return BAD_ORDER
        return BAD_ORDER if verb == "AUTH" and (self._is_known or not self._is_greeted) else None

    def _greet(self, verb: str, name: str) -> str:
        if not name:
            return "501 5.5.4 Who are you?"
        self._abandon()
        self._is_greeted = True
        lines = ("strict.invalid", *((*OFFERS, "AUTH PLAIN LOGIN") if verb == "EHLO" else ()))
        return "\r\n".join([*(f"250-{line}" for line in lines[:-1]), f"250 {lines[-1]}"])

    async def _authenticate(self, mechanism: str, initial: str = "", *more: str) -> str:
        try:
            match mechanism.upper():
                case "PLAIN" if not more:
                    said = await self._ask("", initial)
                case "LOGIN" if not more:
                    said = b"\0" + await self._ask("VXNlcm5hbWU6", initial)
                    said += b"\0" + await self._ask("UGFzc3dvcmQ6", "")
                case _:
                    return "504 5.5.4 No such mechanism"
        except binascii.Error:
            return WRONG
        self._is_known = said == f"\0{USER}\0{PASSWORD}".encode()
        return "235 2.7.0 Welcome" if self._is_known else WRONG

    async def _ask(self, challenge: str, initial: str) -> bytes:
        if initial:
            return base64.b64decode(initial, validate=True)
        self._say(f"334 {challenge}")
        return base64.b64decode(await self._next(b"\r\n", LONGEST_COMMAND) or b"", validate=True)

    def _begin(self, argument: str) -> str:
        if (found := _MAIL.fullmatch(argument)) is None:
            return "501 5.5.4 Syntax: MAIL FROM:<address>"
        parameters = set(found["parameters"].upper().split())
        if not all(_PARAMETER.fullmatch(each) for each in parameters):
            return "555 5.5.4 A parameter is not recognized"
        if any(int(each[5:]) > LARGEST for each in parameters if each.startswith("SIZE=")):
            return "552 5.3.4 The message exceeds the size limit"
        transaction = _Transaction(found["path"], parameters)
        if not (found["path"].isascii() or transaction.takes_utf8):
            return "553 5.6.7 An address beyond ASCII without SMTPUTF8"
        self._transaction = transaction
        return "250 2.1.0 Ok"

    def _add(self, transaction: _Transaction, argument: str) -> str:
        if (found := _RCPT.fullmatch(argument)) is None or not found["path"]:
            return "501 5.5.4 Syntax: RCPT TO:<address>"
        if found["parameters"]:
            return "555 5.5.4 A parameter is not recognized"
        if not (found["path"].isascii() or transaction.takes_utf8):
            return "553 5.6.7 An address beyond ASCII without SMTPUTF8"
        if (refusal := self._host.why_refused(found["path"])) is not None:
            return refusal
        transaction.recipients.append(found["path"])
        return "250 2.1.5 Ok"

    async def _take(self, transaction: _Transaction) -> str:
        if not transaction.recipients:
            return "554 5.5.1 No valid recipients"
        self._say("354 End with a dot")
        # Then a dot on the first line follows a CRLF too.
        self._buffer[:0] = b"\r\n"
        if (raw := await self._next(b"\r\n.\r\n")) is None:
            return "421 4.4.2 Nobody is there"
        content = raw.replace(b"\r\n.", b"\r\n")[2:] + b"\r\n" if raw else b""
        self._transaction, self.held_mail_at_ns = None, transaction.mail_at_ns
        reply = await self._host.decide(transaction, content)
        self.held_mail_at_ns = None
        return reply

    def _abandon(self) -> str:
        """Drop the open transaction, if any, and count it: at RSET, at EHLO, or with the connection."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            self._host.count(transaction)
            self._host.enter(transaction, b"", "", Fate.ABANDONED)
        return "250 2.0.0 Ok"


class StrictSmarthost:
    """The upstream.  Inside its context it listens, on an event loop in a thread of its own."""

    def __init__(
        self,
        folder: Path,
        limit: Mapping[str, Any],
        *,
        seed: int,
        latest_reply_s: float = 0,
        address: str = "127.0.0.1",
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`limit` is as in a policy; the password goes into a file in `folder`; `context` is for TLS.

        The upstream refuses recipients `bad…` for good, and `stay…` for now, each time.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._password = folder / "upstream-password"
        self._password.write_text(PASSWORD + "\n")
        self._password.chmod(0o600)
        # A fixed port, because the upstream comes back to it after a crash.
        self.port = free_port()
        self.address, self._context = address, context
        self.ledger = Witness(limit, cut_off_ns=SECOND_NS)
        """Its counts and its record."""
        self.unanswered = 0
        """How many transactions came to their final dot and wait for its reply."""
        self.refusals = dict(REFUSALS)
        """The first letters of recipients that it refuses, and its replies; tests may change them."""
        self.tried: list[tuple[str, int]] = []
        """Each recipient that it refused, and when RCPT came (boottime)."""
        self._dice = random.Random(seed)
        self._latest_reply_s = latest_reply_s
        self._sessions: dict[_Session, asyncio.Task[None]] = {}
        self._broken: list[BaseException] = []

    def upstream(self, **more: Any) -> dict[str, Any]:
        """Return it as a section `upstreams.NAME` of a policy, with `more` keys."""
        auth = {"user": USER, "password_file": str(self._password)}
        tls = "implicit" if self._context else "none"
        return {"host": self.address, "port": self.port, "tls": tls, "auth": auth} | more

    def seen(self) -> list[Seen]:
        return list(self.ledger.seen)

    def cut_off(self) -> None:
        """Cut all connections at once; a message whose final dot came is decided, but its reply is lost."""
        self.run(self._lose(lambda sessions: sessions))

    def cut_one(self, dice: random.Random) -> int | None:
        """Cut one connection between the dot and its reply; return when its MAIL came, None without one."""

        def drawn(sessions: list[_Session]) -> list[_Session]:
            held = [each for each in sessions if each.held_mail_at_ns and not each.transport.is_closing()]
            return [dice.choice(held)] if held else []

        cut = self.run(self._lose(drawn))
        return cut[0] if cut else None

    def crash(self) -> None:
        """Stop at once and start again: a message without a reply was never taken."""
        self.run(self._stop())
        self.run(self._start())

    def catch_up(self) -> None:
        self.run(self._read_on())

    def wait_until(self, condition: Callable[[Witness], object], *, within_s: float = HANG_S) -> None:
        """Return once the condition holds for its ledger.  Raises TimeoutError."""
        try:
            wait_until(lambda: condition(self.ledger), within_s=within_s)
        except TimeoutError as error:
            counts = f"{self.ledger.relayed} relayed, {self.ledger.refused} refused"
            raise TimeoutError(f"{error}: {counts}") from None

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result()

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        assert self._broken == []

    # Its sessions call these, in its thread.

    def began(self, session: _Session, conversation: asyncio.Task[None]) -> None:
        self._sessions[session] = conversation
        conversation.add_done_callback(lambda _: self._ended(session))

    def why_refused(self, recipient: str) -> str | None:
        for name, reply in self.refusals.items():
            if recipient.startswith(name):
                self.tried.append((recipient, boottime_ns()))
                return reply
        return None

    async def decide(self, transaction: _Transaction, content: bytes) -> str:
        self.unanswered += 1
        try:
            if self._latest_reply_s:
                await asyncio.sleep(self._dice.uniform(0, self._latest_reply_s))
            # The limit goes first: an upstream that cut a client off does not look at content.
            if not self.count(transaction):
                reply = f"550 5.7.1 You have exceeded your sending limit of {self.ledger.label}"
            else:
                reply = transaction.fault(content) or f"250 2.0.0 Ok: taken as {self.ledger.relayed + 1}"
            self.enter(transaction, content, reply, Fate.RELAYED if reply[0] == "2" else Fate.REFUSED)
        finally:
            self.unanswered -= 1
        return reply

    def count(self, transaction: _Transaction) -> bool:
        """Count a transaction at an instant drawn between its MAIL and now; return whether it is allowed."""
        now_ns = boottime_ns()
        counted_at_ns = self._dice.randint(transaction.mail_at_ns, now_ns)
        return self.ledger.admit(counted_at_ns, len(transaction.recipients), now_ns)

    def enter(self, transaction: _Transaction, content: bytes, reply: str, fate: Fate) -> None:
        path, recipients = transaction.reverse_path, tuple(transaction.recipients)
        self.ledger.enter(Seen(transaction.mail_at_ns, boottime_ns(), path, recipients, content, reply, fate))

    def _ended(self, session: _Session) -> None:
        conversation = self._sessions.pop(session)
        if not conversation.cancelled() and (error := conversation.exception()) is not None:
            self._broken.append(error)

    async def _start(self) -> None:
        self._server = await self._loop.create_server(
            lambda: _Session(self), self.address, self.port, ssl=self._context
        )

    async def _stop(self) -> None:
        self._server.close()
        conversations = list(self._sessions.values())
        await self._lose(lambda sessions: sessions)
        for each in conversations:
            each.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)

    async def _lose(self, which: Callable[[list[_Session]], list[_Session]]) -> list[int]:
        lost = which(list(self._sessions))
        for session in lost:
            session.cut()
        return [session.held_mail_at_ns or 0 for session in lost]

    async def _read_on(self) -> None:
        for _ in range(TURNS_TO_READ):
            await asyncio.sleep(0)
