"""How a hostile upstream says what it means: split, halved, lost, late, joined, doubled, or with more.

What it means is in its ledger before it is said.  The manners are drawn for each connection from the
seed and the connection's number, in the order of its replies.

So that an attentive client can always tell what happened, a connection that once says a reply too many
answers everything else, and never hangs up before its client does; and one that once keeps a reply back
says nothing more.  Who does both leaves as many replies as there were commands, each at the wrong place.
Nor does one say 250 between a dot that arrived and its reply, unless it takes the message: the first word
behind the dot is what takes responsibility (RFC 5321, 4.2.5 and 6.1).
"""

import asyncio
import contextlib
import enum
import random
from collections.abc import Callable

from tests.proofs.peers.hostile import words
from tests.proofs.peers.hostile.ledger import TOKEN, Cause, Ledger, Uttered, now_ns


class Hangup(Exception):  # noqa: N818 - what the upstream does
    """The connection ends here."""


class Temper(enum.StrEnum):
    """What a connection is like."""

    PLAIN = "plain"
    LAWFUL = "lawful"
    """Split, joined and late replies: nothing that RFC 5321 forbids."""
    BREAKING = "breaking"
    COUNTING = "counting"
    """Replies too many."""
    ABOUT_US = "about us"


BEFORE_MAIL = ("connect", "ehlo", "auth")
MANNERS = {
    Temper.PLAIN: (),
    Temper.LAWFUL: ("split", "joined", "late"),
    Temper.BREAKING: ("split", "halved", "lost", "lost", "421", "garbage", "wrong", "too late"),
    Temper.COUNTING: ("extra", "extra", "doubled", "before", "before", "before", "ahead"),
    Temper.ABOUT_US: ("us", "us", "split"),
}


class Voice:
    """The upstream's side of one connection."""

    def __init__(
        self,
        ledger: Ledger,
        writer: asyncio.StreamWriter,
        number: int,
        dice: random.Random,
        *,
        temper: Temper,
        is_honest: Callable[[], bool],
    ) -> None:
        self.temper = temper
        self.is_silent = False
        self.is_deciding = False
        """The dot arrived, and has no reply yet."""
        self.is_ahead = False
        """The reply to the next command was said already; it is yes."""
        self.chance = dice.choice([0.05, 0.15, 0.4])
        self._ledger = ledger
        self._writer = writer
        self._number = number
        self._dice = dice
        self._is_honest = is_honest
        self._joined = b""
        self._speaking = asyncio.Lock()
        self._extras: set[asyncio.Task[None]] = set()

    def tell(self, way: str, text: str) -> None:
        """Add a line to the trace."""
        self._ledger.tell(f"c{self._number} {way} {text}")

    def end(self) -> None:
        """Say nothing more."""
        for extra in self._extras:
            extra.cancel()
        self._writer.close()

    def fault(self) -> None:
        self._ledger.faulty_from_ns.setdefault(self._number, now_ns())

    def drawn(self, phase: str) -> str:
        """Return the manner of the next reply."""
        manners, chance = MANNERS[self.temper], self.chance
        if phase in BEFORE_MAIL:
            chance /= 6  # what ends a connection there shows little
        elif phase == "dot":
            chance *= 2  # here it is decided who has the message
        if self._is_honest() or not manners or phase == "quit" or self._dice.random() > chance:
            return "plain"
        return self._dice.choice(manners)

    async def early_or_extra(self) -> None:
        """Perhaps say something while content comes that nobody asked for."""
        if self.temper is Temper.COUNTING and not self._is_honest() and self._dice.random() < self.chance / 2:
            self.add_extra("data", self._drawn_extra("dot"), self._dice.choice([0.0, 0.002, 0.02]))

    async def lose(self, phase: str) -> None:
        """Say nothing more, and hang up after a while, or let the client do so."""
        self.fault()
        self.is_silent = True
        self.tell("--", "says nothing more")
        # A client waits for minutes where no transaction ends its patience: so long no run lasts.
        if phase not in ("mail", "rcpt", "data", "dot") or self._dice.random() < 0.8:
            asyncio.get_running_loop().call_later(self._dice.choice([0.0, 0.05, 0.3]), self.close)

    def close(self) -> None:
        if self._dice.random() < 0.5:
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def say(
        self, phase: str, meant: str, cause: Cause, manner: str, about: tuple[str, ...] = ()
    ) -> None:
        """Say a reply: each line of `meant` has its code."""
        token = len(self._ledger.uttered)
        lines = meant.split("\n")
        code = lines[0][:3]
        if code[0] in "45":
            lines[-1] += f" q{token}q"
        self._ledger.uttered.append(
            Uttered(token, now_ns(), self._number, phase, int(code), "\n".join(lines), cause, manner, about)
        )
        octets = _wire(lines)
        if cause is Cause.FAULT:
            self.fault()
        match manner:
            case "late":
                await asyncio.sleep(self._dice.choice([0.02, 0.1, 0.3]))
            case "joined":
                self._join(octets)
                return
            case "halved":
                self.fault()
                await self.write(octets[: self._dice.randrange(1, len(octets))], "half")
                await asyncio.sleep(self._dice.choice([0.0, 0.02]))
                self.close()
                raise Hangup("half a reply")
            case "split":
                at = sorted(self._dice.sample(range(1, len(octets)), k=min(3, len(octets) - 1)))
                for begin, end in zip([0, *at], at, strict=False):
                    await self.write(octets[begin:end], "split")
                    await asyncio.sleep(self._dice.choice([0.0, 0.002, 0.03]))
                await self.write(octets[at[-1] :], "split")
                return
            case "doubled" | "extra" | "before" | "ahead":
                await self._say_too_much(phase, lines, octets, manner)
                return
        await self.write(octets, manner)

    async def _say_too_much(self, phase: str, lines: list[str], octets: bytes, manner: str) -> None:
        """Say a reply and one that nobody asked for, in one segment or one after the other."""
        self.fault()
        extra = "\n".join(lines) if manner == "doubled" else self._drawn_extra(phase)
        delay_s = self._dice.choice([None, None, 0.0, 0.002, 0.01, 0.05])
        if manner == "ahead":
            if (next_reply := {"mail": "250 2.1.5 Ok", "data": "250 2.0.0 Ok: queued"}.get(phase)) is None:
                await self.write(octets, "")
                return
            self.is_ahead = True
            await self.write(octets, "")
            await asyncio.sleep(self._dice.choice([0.0, 0.002, 0.02]))
            await self.write(self._unasked(phase, next_reply), "ahead of the command")
            return
        if manner == "before":
            if phase == "dot" and extra.startswith("2") and not octets.startswith(b"2"):
                extra = words.UNASKED[0]
            # In front of the reply, as if the command before had two.
            await self.write(self._unasked(phase, extra), "unasked")
            await asyncio.sleep(self._dice.choice([0.0, 0.003, 0.01, 0.03]))
            await self.write(octets, "")
        elif delay_s is None:
            await self.write(octets + self._unasked(phase, extra), "with one unasked")
        else:
            await self.write(octets, "")
            self.add_extra(phase, extra, delay_s)

    def _drawn_extra(self, phase: str) -> str:
        """Return what nobody asked for; mostly what would harm most if it were taken for an answer."""
        if self._dice.random() < 0.6:
            return self._dice.choice(
                words.UNASKED[:2] if phase != "dot" else words.UNASKED[2:4] + words.UNASKED[6:7]
            )
        return self._dice.choice(words.UNASKED)

    def _unasked(self, phase: str, extra: str) -> bytes:
        token = len(self._ledger.uttered)
        lines = [TOKEN.sub("", line).rstrip() for line in extra.split("\n")]
        lines[-1] += f" q{token}q"
        code = int(lines[0][:3])
        self._ledger.uttered.append(
            Uttered(token, now_ns(), self._number, phase, code, "\n".join(lines), Cause.FAULT, "unasked")
        )
        return _wire(lines)

    def add_extra(self, phase: str, extra: str, delay_s: float) -> None:
        async def add() -> None:
            await asyncio.sleep(delay_s)
            if self.is_deciding and extra.startswith("2"):
                return
            with contextlib.suppress(OSError):
                await self.write(self._unasked(phase, extra), "unasked")

        self.fault()
        task = asyncio.get_running_loop().create_task(add())
        self._extras.add(task)
        task.add_done_callback(self._extras.discard)

    def _join(self, octets: bytes) -> None:
        """Keep a reply until others join it, or a moment is over."""
        if not self._joined:
            asyncio.get_running_loop().call_later(0.02, self._flush)
        self._joined += octets

    def _flush(self) -> None:
        octets, self._joined = self._joined, b""
        if octets and not self._writer.is_closing():
            self.tell("<<", f"joined {octets!r}")
            self._writer.write(octets)

    async def write(self, octets: bytes, how: str) -> None:
        async with self._speaking:
            self._flush()
            self.tell("<<", f"{how + ' ' if how != 'plain' else ''}{octets!r}")
            self._writer.write(octets)
            await self._writer.drain()


def _wire(lines: list[str]) -> bytes:
    """Return lines that begin with their code as a reply (RFC 5321, 4.2.1)."""
    return "".join(f"{each[:3]}-{each[4:]}\r\n" for each in lines[:-1]).encode() + f"{lines[-1]}\r\n".encode()
