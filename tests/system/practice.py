"""The practice smarthost as a peer: in a thread of its own, with every transaction on record.

It runs beside the test, since waiting for a relay would stop an event loop of the test's
own.  What it saw is read from the test's thread: `seen()` and `ledger` once it is stopped,
or when nothing is going on any more; counters at any time.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from relay.clock import SECOND_NS
from relay.policy.limits import LimitSettings
from relay.policy.units import HostPort
from relay.practice.account import PracticeBehaviour
from relay.practice.smarthost import PracticeSmarthost
from relay.practice.witness import Sighting, Witness
from tests.system.waiting import HANG_S, free_port, wait_until

USER, PASSWORD = "mjd", "correct horse"
REFUSALS = {"bad": "550 5.1.1 nobody of that name", "stay": "450 4.2.0 come again"}
PULSE_NS = 20_000_000
"""How late this thread may be woken before it counts as stalled."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One transaction as the smarthost saw it."""

    mail_at_ns: int
    """When MAIL came, by its clock."""
    ended_at_ns: int
    """When it replied to the final dot, or lost the client before that."""
    entry: Sighting


class Instants(random.Random):
    """The smarthost's dice, which remember when each transaction began and ended.

    Counting at random, it has them choose an instant between MAIL and its reply, once for
    each transaction and just before that is entered.  What is drawn from zero up is no
    instant but the lateness of a reply, and it is drawn at the final dot.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.spans_ns: list[tuple[int, int]] = []
        self.dots = 0

    def randint(self, a: int, b: int) -> int:
        """Choose, and remember the span if it is one of instants."""
        if a > 0:
            self.spans_ns.append((a, b))
        else:
            self.dots += 1
        return super().randint(a, b)


class Practice:
    """A practice smarthost that counts at random.  A context manager: in it, it listens."""

    def __init__(
        self,
        folder: Path,
        limit: Mapping[str, Any],
        *,
        seed: int,
        latest_reply_s: float = 0,
        cut_off_s: float = 1,
        keep: Path | None = None,
    ) -> None:
        """`limit` is as in a policy; its password goes into a file of the folder.

        Whoever is called `bad…` it refuses for good, and `stay…` each time for now.
        """
        self._password = folder / "practice-password"
        self._password.write_text(PASSWORD + "\n")
        self._password.chmod(0o600)
        self._instants = Instants(seed)
        self._keep = keep
        self._undecided = 0
        self._host = PracticeSmarthost(
            # Not 0: it comes back to the same port after a crash.
            HostPort("127.0.0.1", free_port()),
            USER,
            PASSWORD,
            PracticeBehaviour(
                LimitSettings.model_validate(limit),
                int(cut_off_s * SECOND_NS),
                longest_delay_ns=int(latest_reply_s * SECOND_NS),
                keep=keep,
                why_refused=self._why_refused,
            ),
            rng=self._instants,
        )
        self.refusals = dict(REFUSALS)
        """How a name begins that it does not take, and what it says; tests may change it."""
        self.tried: list[tuple[str, int]] = []
        """Each recipient that it did not take, and when RCPT came, by its clock."""
        self.stalls_ns: list[int] = []
        """For how long, each time, this machine did not run even us."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="practice", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._host.port

    @property
    def ledger(self) -> Witness:
        """What it counted."""
        return self._host.ledger

    @property
    def unanswered(self) -> int:
        """How many transactions came to their final dot and wait for its reply."""
        return self._instants.dots - self.ledger.relayed - self.ledger.refused - self._undecided

    def upstream(self, **more: Any) -> dict[str, Any]:
        """Return it as a section `upstreams.NAME` of a policy, with `more` keys."""
        auth = {"user": USER, "password_file": str(self._password)}
        return {"host": "127.0.0.1", "port": self._host.port, "tls": "none", "auth": auth} | more

    def seen(self) -> list[Seen]:
        """Return every transaction, in the order in which they ended."""
        entries = list(self.ledger.entries)
        return [Seen(*span, entry) for span, entry in zip(self._instants.spans_ns, entries, strict=True)]

    def content_of(self, seen: Seen) -> bytes:
        """Return what it took in a transaction; needs `keep`."""
        assert self._keep is not None, "nothing was kept"
        number = int(seen.entry.reply.split()[-1])
        return (self._keep / f"{number:06}.eml").read_bytes()

    def cut_off(self) -> None:
        """Lose every connection at once; what came to its dot is taken, and nobody hears of it."""
        self._run(self._lose_connections())

    def cut_one(self, dice: random.Random) -> int | None:
        """Lose one connection between the dot and its reply, if there is one; return when its MAIL came."""
        cut: int | None = self._run(self._lose_one(dice))
        return cut

    def crash(self) -> None:
        """Die in the middle of everything and come back: what it did not reply to, it never took."""
        self._run(self._crash())

    def catch_up(self) -> None:
        """Read what a client that just died had sent."""
        self._run(self._read_on())

    def wait_until(self, condition: Callable[[Witness], object], *, within_s: float = HANG_S) -> None:
        """Return once something is true of its ledger.  Raises TimeoutError."""
        try:
            wait_until(lambda: condition(self.ledger), within_s=within_s)
        except TimeoutError as error:
            counts = f"{self.ledger.relayed} relayed, {self.ledger.refused} refused"
            raise TimeoutError(f"{error}: {counts}") from None

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._host.start())
        self._pulse = asyncio.run_coroutine_threadsafe(self._feel_pulse(), self._loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pulse.cancel()
        self._run(self._host.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _why_refused(self, recipient: str) -> str | None:
        for name, reply in self.refusals.items():
            if recipient.startswith(name):
                self.tried.append((recipient, time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
                return reply
        return None

    async def _lose_connections(self) -> None:
        for session in list(self._host._terms.open):
            session._transport.abort()

    async def _lose_one(self, dice: random.Random) -> int | None:
        held = [
            (transaction.mail_at_ns, session)
            for session in self._host._terms.open
            if session._late_reply is not None and not session._is_over
            if (transaction := session._dialogue._transaction) is not None
        ]
        if not held:
            return None
        mail_at_ns, session = dice.choice(sorted(held, key=lambda each: each[0]))
        session._transport.abort()
        return mail_at_ns

    async def _read_on(self) -> None:
        # All of it is in our sockets by now; one turn of the loop reads 256 KiB of each.
        for _ in range(4):
            await asyncio.sleep(0)

    async def _crash(self) -> None:
        await self._host.close()
        await self._host.start()
        self._host._terms.open.clear()
        self._undecided += self.unanswered

    def _run(self, doing: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result()

    async def _feel_pulse(self) -> None:
        while True:
            due_ns = time.monotonic_ns() + PULSE_NS
            await asyncio.sleep(PULSE_NS / SECOND_NS)
            late_ns = time.monotonic_ns() - due_ns
            if late_ns > PULSE_NS:
                self.stalls_ns.append(late_ns)
