"""A strict upstream: it enforces one limit, cuts off a client that exceeds it, replies late, and records all.

It counts and records each transaction once that came to its final dot, whether the client waits for the reply
or is gone, and each that is abandoned after MAIL.  The instant that counts is drawn between MAIL and reply.
It judges the protocol as every `tests.fakes.smarthost` does: a fault of the client fails the test at the end.

Call `seen()` once it is stopped or idle; read its counters at any time.
"""

import asyncio
import random
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.fakes.smarthost import DEFAULT, Recorded, Script, Session, Smarthost, Turn
from tests.system.waiting import HANG_S, free_port, wait_until
from tests.system.witness import SECOND_NS, Seen, Witness

USER, PASSWORD = "mjd", "correct horse"
REFUSALS = {"bad": "550 5.1.1 nobody of that name", "stay": "450 4.2.0 come again"}
TURNS_TO_READ = 60
"""Turns of the loop: the first read the octets in our sockets, the next ones answer them."""


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class _Session(Session):
    """One connection.  The octets of a client that died are read to their end, unless the line was cut."""

    is_held = False
    """The final reply to a message is held back."""

    _host: "StrictSmarthost"

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self.drop()

    async def take(self, recorded: Recorded) -> str:
        self.is_held = True
        # The ledger keeps the message; these would be two more copies of each.
        self.received.clear()
        self._host.transactions.clear()
        try:
            return await self._host.decide(recorded)
        finally:
            self.is_held = False

    def drop(self) -> None:
        """Drop the open transaction, if any, and count it: at RSET, at EHLO, or with the connection."""
        if self._transaction is not None:
            self._host.count(self._transaction)
            self._host.enter(self._transaction, "")
        super().drop()

    def cut(self) -> None:
        """Cut the connection at once; a message whose final dot came is decided all the same."""
        self.is_cut = True
        self._buffer.clear()
        self.writer.transport.abort()


class StrictSmarthost(Smarthost):
    """The upstream.  Inside its context it listens, on an event loop in a thread of its own."""

    session_type: ClassVar[type[Session]] = _Session

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
        super().__init__(
            Script(rcpt=self._refusal),
            tls=context,
            is_implicit=context is not None,
            accounts={USER: PASSWORD},
            mechanisms=("PLAIN", "LOGIN"),
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._password = folder / "upstream-password"
        self._password.write_text(PASSWORD + "\n")
        self._password.chmod(0o600)
        # A fixed port, because the upstream comes back to it after a crash.
        self.port = free_port()
        self.address = address
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

    def upstream(self, **more: Any) -> dict[str, Any]:
        """Return it as a section `upstreams.NAME` of a policy, with `more` keys."""
        auth = {"user": USER, "password_file": str(self._password)}
        tls = "implicit" if self.is_implicit else "none"
        return {"host": self.address, "port": self.port, "tls": tls, "auth": auth} | more

    def seen(self) -> list[Seen]:
        return list(self.ledger.seen)

    def cut_off(self) -> None:
        """Cut all connections at once; a message whose final dot came is decided, but its reply is lost."""
        self.run(self._cut(list))

    def cut_one(self, dice: random.Random) -> None:
        """Cut one connection between the dot and its reply, if there is one."""

        def one(sessions: Iterable[_Session]) -> list[_Session]:
            held = [each for each in sessions if each.is_held]
            return [dice.choice(held)] if held else []

        self.run(self._cut(one))

    def crash(self) -> None:
        """Stop at once and start again: a message without a reply was never taken."""
        self.run(self.stop())
        self.run(self.__aenter__())

    def catch_up(self) -> None:
        self.run(_turn_on())

    def wait_until(self, condition: Callable[[Witness], object], *, within_s: float = HANG_S) -> None:
        """Return once the condition holds for its ledger.  Raises TimeoutError."""
        try:
            wait_until(lambda: condition(self.ledger), within_s=within_s)
        except TimeoutError as error:
            counts = f"{self.ledger.relayed} relayed, {self.ledger.refused} refused"
            raise TimeoutError(f"{error}: {counts}") from None

    def run(self, doing: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(doing, self._loop).result()

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.stop())
            self.catch_up()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        assert self.faults == []

    # Its sessions call these, in its thread.

    async def decide(self, recorded: Recorded) -> str:
        """Count a message and return the reply to its final dot."""
        self.unanswered += 1
        try:
            if self._latest_reply_s:
                await asyncio.sleep(self._dice.uniform(0, self._latest_reply_s))
            reply = f"550 5.7.1 You have exceeded your sending limit of {self.ledger.label}"
            if self.count(recorded):
                reply = f"250 2.0.0 Ok: taken as {self.ledger.relayed + 1}"
            self.enter(recorded, reply)
        finally:
            self.unanswered -= 1
        return reply

    def count(self, recorded: Recorded) -> bool:
        """Count a transaction at an instant drawn between its MAIL and now; return whether it is allowed."""
        now_ns = boottime_ns()
        counted_at_ns = self._dice.randint(recorded.began_ns, now_ns)
        return self.ledger.admit(counted_at_ns, len(recorded.recipients), now_ns)

    def enter(self, recorded: Recorded, reply: str) -> None:
        path, recipients = recorded.reverse_path, tuple(recorded.recipients)
        self.ledger.enter(Seen(recorded.began_ns, boottime_ns(), path, recipients, recorded.content, reply))

    def _refusal(self, argument: str) -> Turn:
        recipient = argument.removeprefix("TO:<").partition(">")[0]
        for name, reply in self.refusals.items():
            if recipient.startswith(name):
                self.tried.append((recipient, boottime_ns()))
                return reply
        return DEFAULT

    async def _cut(self, which: Callable[[Iterable[_Session]], list[_Session]]) -> None:
        sessions = (each for each in self.sessions if isinstance(each, _Session))
        for session in which(each for each in sessions if not each.writer.is_closing()):
            session.cut()


async def _turn_on() -> None:
    for _ in range(TURNS_TO_READ):
        await asyncio.sleep(0)
