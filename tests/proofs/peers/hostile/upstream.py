"""An upstream that a relay has to live with: a server on loopback, with a judge and a ledger of its own.

It counts what it sees and refuses what is too much, knows who is dead, who has to wait and what
content is bad, and says now and then something about the account that is not so.
"""

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.proofs.peers.hostile import words
from tests.proofs.peers.hostile.ledger import Cause, Fate, Ledger, Transaction, now_ns
from tests.proofs.peers.hostile.voice import Hangup, Temper, Voice

LONGEST_LINE_BYTES = 64 * 1024 * 1024
USER = "owner"
TICK_S = 0.05
STALL_NS = 300_000_000


@dataclass(frozen=True, slots=True)
class Terms:
    """What the upstream allows and what may be drawn."""

    seed: str
    count: int
    period_s: float
    longest_s: float
    """A client's longest transaction: what comes later nobody waits for."""
    counts_at: str = "mail"
    """When it counts a transaction: mail, or dot."""
    has_auth: bool = False
    tempers: tuple[Temper, ...] = tuple(Temper)
    weights: tuple[int, ...] = (20, 10, 35, 20, 15)
    flaps: bool = True
    """Whether what EHLO offers differs from connection to connection."""


class HostileUpstream:
    """The server, in a thread of its own.  A context manager."""

    def __init__(self, terms: Terms, ledger: Ledger, at: Callable[[str], None] = lambda _stage: None) -> None:
        """`at` is called in its thread when a transaction reaches a stage: mail, rcpt, data, dot, told."""
        self.terms = terms
        self.ledger = ledger
        self.at = at
        self.port = 0
        self.is_honest = False
        self.counted_ns: list[int] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upstream")
        self._connections = 0
        self._sessions: dict[asyncio.Task[None], Session] = {}
        self._by_address: dict[str, words.Recipient] = {}

    def know(self, letter: words.Letter) -> None:
        """Know how to treat a letter, before it is handed over."""
        self.ledger.letters[letter.number] = letter
        self._by_address |= {each.address: each for each in letter.recipients}

    def recipient(self, address: str) -> words.Recipient | None:
        """Return who an address is; None for whoever reports go to."""
        return self._by_address.get(address)

    def become_honest(self) -> None:
        """Say from now on what is meant, as RFC 5321 has it, and refuse nobody who lives."""
        self.is_honest = True
        self.ledger.tell("-- the upstream is honest from here on, on new connections")
        self._loop.call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        for session in self._sessions.values():
            session.hang_up()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._accept, "127.0.0.1", 0, limit=LONGEST_LINE_BYTES)
        )
        self.port = server.sockets[0].getsockname()[1]
        ticking = self._loop.create_task(self._tick())
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = [ticking, *self._sessions]
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _tick(self) -> None:
        before_ns = now_ns()
        while True:
            await asyncio.sleep(TICK_S)
            at_ns = now_ns()
            if at_ns - before_ns > STALL_NS:
                self.ledger.stalls_ns.append((before_ns, at_ns))
            before_ns = at_ns

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        session = Session(self, reader, writer, self._connections)
        task = asyncio.current_task()
        assert task is not None
        self._sessions[task] = session
        # Cancelled only at the end of the run, which asyncio's streams take for an error.
        with contextlib.suppress(asyncio.CancelledError):
            await session.run()
        del self._sessions[task]

    def is_over(self, at_ns: int) -> bool:
        """Count one transaction at an instant; return whether it was one too many."""
        since_ns = at_ns - round(self.terms.period_s * 1e9)
        in_window = sum(each > since_ns for each in self.counted_ns)
        self.counted_ns.append(at_ns)
        return in_window >= self.terms.count


@dataclass(slots=True)
class Offer:
    """What one connection says to EHLO."""

    lines: list[str]
    refusal: str = ""
    """Instead; HELO is taken."""
    pipelining: bool = field(default=False)


class Session:
    """One connection."""

    def __init__(
        self,
        upstream: HostileUpstream,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        number: int,
    ) -> None:
        self.number = number
        self._upstream = upstream
        self._ledger = upstream.ledger
        self._reader = reader
        self._dice = random.Random(f"{upstream.terms.seed}/{number}")
        terms = upstream.terms
        temper = Temper.PLAIN if upstream.is_honest else self._dice.choices(terms.tempers, terms.weights)[0]
        self._voice = Voice(
            self._ledger, writer, number, self._dice, temper=temper, is_honest=lambda: upstream.is_honest
        )
        self._offer = self._drawn_offer()
        self._blocked = ""  # what it says about us to everything from now on
        self._one: Transaction | None = None
        self._last_taken: Transaction | None = None
        self._helo = self._is_in = False

    def _drawn_offer(self) -> Offer:
        dice, terms = self._dice, self._upstream.terms
        lines = ["PIPELINING", "SIZE 50000000", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES"]
        auth = ["AUTH PLAIN LOGIN"] if terms.has_auth else []
        if self._upstream.is_honest or not terms.flaps or dice.random() > 0.3:
            return Offer(lines + auth)
        if dice.random() < 0.2:
            refusals = (
                "500 5.5.1 Command unrecognized",
                "502 5.5.2 Not implemented",
                "550 Too many connections, try later",
            )
            return Offer([], dice.choice(refusals))
        lines[1] = dice.choice(["SIZE", "SIZE 0", "SIZE 100", "SIZE 2000", "SIZE 50000000", "XSIZE"])
        lines = [each for each in lines if dice.random() < 0.6]
        lines += [
            each
            for each in ("LIMITS RCPTMAX=1 MAILMAX=2", "CHUNKING", "8bitmime nonsense")
            if dice.random() < 0.1
        ]
        dice.shuffle(lines)
        return Offer(lines + (auth if dice.random() < 0.9 else []))

    async def run(self) -> None:
        """Speak until the connection ends."""
        self._voice.tell(
            "--", f"{self._voice.temper}, offers {self._offer.refusal or ' '.join(self._offer.lines)}"
        )
        try:
            await self._greet()
            while True:
                line = await self._reader.readuntil(b"\n")
                self._voice.tell(">>", line.decode("utf-8", "replace").rstrip())
                if not self._voice.is_silent:
                    await self._obey(line)
        except (Hangup, OSError, EOFError, asyncio.LimitOverrunError) as error:
            self._voice.tell("--", f"ended: {error!r}")
        finally:
            self._end_transaction(Fate.DROPPED)
            self._voice.end()

    def hang_up(self) -> None:
        """End it, whatever it is doing."""
        self._voice.fault()
        self._voice.close()

    async def _greet(self) -> None:
        if self._voice.temper is Temper.BREAKING and self._dice.random() < 0.1:
            self._voice.fault()
            raise Hangup("no greeting")
        await self._answer("connect", "220 hostile.test ESMTP")

    async def _obey(self, line: bytes) -> None:
        text = line.rstrip(b"\r\n").decode("utf-8", "replace")
        verb = text.split(" ")[0].upper()
        match verb:
            case "EHLO" | "HELO":
                await self._hello(verb)
            case "AUTH":
                self._is_in = await self._answer("auth", "235 2.7.0 Authentication successful")
            case "MAIL":
                await self._mail(text)
            case "RCPT":
                await self._rcpt(text)
            case "DATA":
                await self._content()
            case "RSET":
                self._end_transaction(Fate.DROPPED)
                await self._answer("rset", "250 2.0.0 Ok")
            case "QUIT":
                await self._voice.say("quit", "221 2.0.0 Bye", Cause.FINE, "plain")
                raise Hangup("QUIT")
            case "NOOP":
                await self._answer("noop", "250 2.0.0 Ok")
            case _:
                await self._answer("other", "502 5.5.2 Error: command not recognized", Cause.ORDER)

    async def _hello(self, verb: str) -> None:
        self._end_transaction(Fate.DROPPED)
        if verb == "EHLO" and self._offer.refusal:
            await self._answer("ehlo", self._offer.refusal, Cause.NO_EHLO)
            return
        self._helo = True
        lines = ["250 hostile.test", *(f"250 {each}" for each in self._offer.lines if verb == "EHLO")]
        await self._answer("ehlo", "\n".join(lines))

    async def _mail(self, text: str) -> None:
        self._end_transaction(Fate.DROPPED)
        if not self._helo:
            await self._answer("mail", "503 5.5.1 Error: send HELO/EHLO first", Cause.ORDER)
            return
        one = Transaction(len(self._ledger.transactions), self.number, now_ns(), _path(text))
        self._ledger.transactions.append(one)
        self._upstream.at("mail")
        if self._upstream.terms.counts_at == "mail" and await self._is_cut_off("mail"):
            one.fate = Fate.REFUSED
            return
        self._one = one
        if not await self._answer("mail", "250 2.1.0 Ok"):
            self._end_transaction(Fate.REFUSED)

    async def _is_cut_off(self, phase: str) -> bool:
        """Count a transaction, and refuse it if it is one too many: this must never happen."""
        if not self._upstream.is_over(now_ns()):
            return False
        terms = self._upstream.terms
        text = words.OVER.replace("{n}", str(terms.count)).replace("{t}", f"{terms.period_s:g} s")
        self._ledger.over.append(f"c{self.number} at {phase}")
        await self._voice.say(phase, text, Cause.OVER, "plain")
        return True

    async def _rcpt(self, text: str) -> None:
        one, address = self._one, _path(text)
        if one is None:
            await self._answer("rcpt", "503 5.5.1 Error: need MAIL command", Cause.ORDER)
            return
        one.rcpt_at_ns.append(now_ns())
        self._upstream.at("rcpt")
        known = self._upstream.recipient(address)
        if known is not None and (known.dead or self._is_slow(known)):
            cause = Cause.DEAD if known.dead else Cause.SLOW
            wording = known.dead or known.slow[self._refused_slowly(known)]
            filled = "\n".join(
                f"{wording[:3]} {each}" for each in words.filled(wording, address, one.sender, "")
            )
            is_accepted = await self._answer("rcpt", filled, cause, (known.name,), address)
        else:
            is_accepted = await self._answer("rcpt", "250 2.1.5 Ok", Cause.FINE, (), address)
        if is_accepted:
            one.accepted.append(address)

    def _refused_slowly(self, known: words.Recipient) -> int:
        return sum(each.cause is Cause.SLOW and known.name in each.about for each in self._ledger.uttered)

    def _is_slow(self, known: words.Recipient) -> bool:
        return not self._upstream.is_honest and self._refused_slowly(known) < len(known.slow)

    async def _content(self) -> None:
        one = self._one
        self._upstream.at("data")
        if one is None or not one.accepted:
            await self._answer("data", "503 5.5.1 Error: need RCPT command", Cause.ORDER)
            return
        if not await self._answer("data", "354 End data with <CR><LF>.<CR><LF>"):
            self._end_transaction(Fate.REFUSED)
            return
        await self._voice.early_or_extra()
        lines: list[bytes] = []
        while (line := await self._reader.readuntil(b"\n")) != b".\r\n":
            lines.append(line.removeprefix(b"."))
        one.content = b"".join(lines)
        self._voice.tell(">>", f"({len(one.content)} octets) .")
        self._voice.is_deciding = True
        self._upstream.at("dot")
        if self._voice.is_silent:
            self._end_transaction(Fate.DROPPED)
        elif self._upstream.terms.counts_at == "dot" and await self._is_cut_off("dot"):
            self._end_transaction(Fate.REFUSED)
        else:
            await self._decide(one)
        self._voice.is_deciding = False

    async def _decide(self, one: Transaction) -> None:
        """Take what came, or refuse it, and say so."""
        number = next((each.number for each in map(self._upstream.recipient, one.accepted) if each), None)
        letter = None if number is None else self._ledger.letters[number]
        if letter is not None and letter.bad and one.sender:
            first, about = one.accepted[0], self._names(one)
            lines = words.filled(letter.bad, first, one.sender, letter.subject)
            if not self._voice.is_ahead:
                self._end_transaction(Fate.REFUSED)
            await self._answer("dot", f"{letter.bad[:3]} {' '.join(lines)}", Cause.CONTENT, about)
            return
        await self._answer("dot", "250 2.0.0 Ok: queued", Cause.FINE, self._names(one))

    def _names(self, one: Transaction) -> tuple[str, ...]:
        known = map(self._upstream.recipient, one.accepted)
        return tuple(each.name for each in known if each is not None)

    def _end_transaction(self, fate: Fate) -> None:
        if self._one is not None and self._one.fate is Fate.OPEN:
            self._one.fate, self._one.decided_at_ns = fate, now_ns()
        self._one = None

    async def _answer(
        self,
        phase: str,
        meant: str,
        cause: Cause = Cause.FINE,
        about: tuple[str, ...] = (),
        address: str = "",
    ) -> bool:
        """Say something in a manner that is drawn; return whether it means yes and goes on from there."""
        is_yes = meant[0] in "23"
        if self._voice.is_ahead and phase in ("rcpt", "dot") and cause is not Cause.ORDER:
            self._voice.is_ahead = False
            self._take(phase, is_taken=True)
            return True
        manner = self._voice.drawn(phase)
        if self._blocked or (manner == "us" and is_yes):
            await self._refuse_us(phase, address)
            return False
        if manner in ("421", "lost", "wrong", "garbage"):
            is_taken = self._take(phase, is_yes and self._dice.random() < 0.5)
            self._ledger.dropped_unheard += phase == "dot" and is_yes and not is_taken
            await self._fail_to_answer(phase, manner, about)
            return is_yes and manner == "wrong" and (phase != "dot" or is_taken)
        self._take(phase, is_yes)
        if manner == "too late":
            self._voice.fault()
            await asyncio.sleep(self._upstream.terms.longest_s * 1.3)
        told = self._last_taken if phase == "dot" and is_yes else None
        await self._voice.say(phase, meant, cause, manner, about)
        if told is not None:
            told.told_at_ns = now_ns()
            self._upstream.at("told")
        return is_yes

    async def _fail_to_answer(self, phase: str, manner: str, about: tuple[str, ...]) -> None:
        """Say something else instead, or nothing."""
        match manner:
            case "421":
                await self._voice.say(phase, "421 4.3.2 Service shutting down", Cause.FAULT, "plain")
                raise Hangup("421")
            case "lost":
                await self._voice.lose(phase)
            case "wrong":
                others = ["200 Ok", "354 Go ahead", "300 x", "199 x", "220 x", "235 x"]
                if phase not in ("rcpt", "mail", "rset"):
                    others.append("251 Ok")
                await self._voice.say(phase, self._dice.choice(others), Cause.FAULT, "wrong", about)
            case _:
                await self._voice.write(self._dice.choice(words.GARBAGE), "garbage")
                raise Hangup("garbage")

    def _take(self, phase: str, is_taken: bool) -> bool:
        """Take responsibility for the content that came, or not."""
        if phase == "dot" and self._one is not None:
            self._last_taken = self._one
            self._end_transaction(Fate.TAKEN if is_taken else Fate.REFUSED)
            if is_taken:
                self._voice.tell("==", f"took transaction {self._last_taken.number}")
        return is_taken

    async def _refuse_us(self, phase: str, address: str) -> None:
        """Say something about the account, to this and perhaps to everything that follows."""
        if phase == "dot":
            self._end_transaction(Fate.REFUSED)
        if not self._blocked:
            wordings = {
                "connect": words.US_BEFORE_MAIL,
                "ehlo": words.US_BEFORE_MAIL,
                "auth": words.US_AT_AUTH,
                "rcpt": words.US_AT_RCPT + words.US_FROM_MAIL,
            }.get(phase, words.US_FROM_MAIL)
            wording = self._dice.choice(wordings)
        else:
            wording = self._blocked
        if self._dice.random() < 0.5 and "{" not in wording:
            self._blocked = wording
        sender = self._one.sender if self._one is not None else ""
        lines = words.filled(wording, address or "nobody@nowhere.example", sender, "")
        await self._voice.say(phase, "\n".join(f"{wording[:3]} {each}" for each in lines), Cause.US, "plain")
        if wording.startswith("421") or phase == "connect":
            raise Hangup("after a refusal of us")


def _path(text: str) -> str:
    """Return what stands between the first and the last angle bracket."""
    return text[text.index("<") + 1 : text.rindex(">")]
