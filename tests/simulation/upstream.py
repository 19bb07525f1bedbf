"""The upstreams of a story: each counts by its own clock, and misbehaves in every possible way.

Each upstream notes what it saw, and when (`Ledger`). The instant at which it counts a message depends on the
sender: at MAIL, or just before its reply to the dot, or long after the dot if that reply is lost. A *mood* is
a behaviour towards all clients for a while. Besides, a recipient's name decides what happens to it: `bad…`
is refused permanently, `later…` is deferred at first, `never…` is always deferred, `junk…` is refused
permanently at the dot, `slow…` is deferred at the dot at first, and all others are accepted. A sender
`alien…` may not send at first.
"""

import asyncio
import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from relay.clock import SECOND_NS
from tests.simulation.loop import LIFE, SimulatedLoop
from tests.simulation.network import Transport

LOST_REPLY_S = 60.0
"""After a lost reply, a message is taken up to this long after the dot: a third of `max_transaction`."""


class Mood(enum.StrEnum):
    QUOTA_AT_MAIL = "refuses at MAIL: too much was sent"
    QUOTA_AT_DOT = "refuses at the dot: too much was sent"
    BLOCKED = "refuses the account in words that nobody knows"
    GREYLIST = "defers every recipient"
    BUSY = "says 421 to whoever connects"
    GOES = "says 421 at the second MAIL of a session"
    HANGS = "says nothing more behind the dot"
    DEAF = "says nothing more behind MAIL"
    HANGS_UP = "hangs up behind the dot, and took the message"
    DROPS = "hangs up at RCPT"
    ODD = "replies in lines that no RFC knows"
    UNASKED = "says what nobody asked"
    DOWN = "takes no connection"
    OFFERS_NO_DSN = "offers no DSN to whoever connects"
    REFUSES_DSN = "refuses what DSN asks for"
    MUTE = "says nothing to whoever connects"
    LEAVES = "refuses a recipient that it would take, in new words each time, and hangs up"
    ADDS = "says one reply too many in front of those to RCPT"
    OMITS = "says one reply too few to RCPT"


DEFERRED_TIMES = 2
ALIEN_TIMES = 5
"""The number of refusals of a sender that may not send at first."""
SHORTEST_REST_S = 15
GREETING_S = 300
"""The time to wait for a greeting; below, the longest transaction (`max_transaction`)."""
MAX_TRANSACTION_S = 180
FAILING = ("bad", "never", "junk")
"""Recipients that are never relayed."""
QUOTAS = (
    ("550 5.7.1 You have exceeded your sending limit", SHORTEST_REST_S),
    ("451 4.7.0 Sending rate limit exceeded, try again in 120 seconds", 120),
    ("554 5.7.1 Daily sending quota exceeded", SHORTEST_REST_S),
)
"""Refusals of the account, and the seconds for which the relay must not come again."""
ODD: tuple[Callable[[bytes], bytes], ...] = (
    lambda reply: reply[:-2] + b" " + b"x" * 3_000 + b"\r\n",
    lambda reply: reply.replace(b"\r\n", b"\n"),
    lambda reply: reply[:-2] + b" \xb2\xe2\xca\xd4 \x00\x1b[31m\r\n",
)
"""What becomes of a reply in the mood ODD: a long line, no CR, or octets beyond ASCII."""


class Seen(NamedTuple):
    true_ns: int
    what: str
    """`connect`, `mail`, `rcpt`, `dot` or `counted`."""
    sender: str = ""
    recipient: str = ""
    size_bytes: int = 0
    recipients: int = 0


@dataclass
class Taken:
    """A message for which the upstream took responsibility."""

    true_ns: int
    upstream: str
    sender: str
    recipients: tuple[str, ...]
    content: bytes
    begun_ns: int
    """When MAIL came."""
    dsn: tuple[str, ...] | None = None
    """The parameters of each RCPT; None: this session was offered no DSN."""
    of_mail: str = ""
    """The parameters RET and ENVID of MAIL."""
    host: str = ""
    """The relay that sent it."""
    is_told: bool = False
    """The whole reply was sent on an open connection."""

    @property
    def is_report(self) -> bool:
        return not self.sender and b"\r\nAuto-Submitted: auto-" in self.content

    def asked_of(self, recipient: str) -> str:
        return self.dsn[self.recipients.index(recipient)] if self.dsn else ""


@dataclass
class Silence:
    """A connection on which the upstream said nothing."""

    since_ns: int
    most_ns: int
    """The longest time that the relay may leave it open."""
    until_ns: int = 0


@dataclass
class Ledger:
    seen: list[Seen] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    sessions: list[tuple[int, int]] = field(default_factory=list)
    """Begin and end of each closed connection."""
    transactions: list[tuple[int, int, int]] = field(default_factory=list)
    """From MAIL to the last reply or the end of the session; and the number of recipients named."""
    blocks: list[tuple[int, str]] = field(default_factory=list)
    """When a message was refused in unknown words, and its sender."""
    refusals: list[tuple[int, int]] = field(default_factory=list)
    """When the account was refused, and until when the relay must not come again."""
    deferrals: list[tuple[int, str]] = field(default_factory=list)
    """When a recipient was deferred."""
    aliens: list[tuple[int, str]] = field(default_factory=list)
    """When a sender was told that it may not send."""
    silences: list["Silence"] = field(default_factory=list)
    proofs: list[int] = field(default_factory=list)
    """When the upstream proved itself: it took a message, or refused one or a recipient permanently."""
    idle: list[tuple[int, int]] = field(default_factory=list)
    """From the last reply of a session to QUIT."""
    refused_dsn: bool = False
    """The upstream offered DSN and refused its parameters at least once."""


class Upstream:
    def __init__(
        self, name: str, port: int, loop: SimulatedLoop, ledger: Ledger, *, most_recipients: int
    ) -> None:
        self.name = name
        self.port = port
        self.loop = loop
        self.rng = loop.rng
        self.ledger = ledger
        self.mood: Mood | None = None
        self._mood_number = 0
        self.most_recipients = most_recipients
        """The most recipients of a transaction."""
        self.words = 0
        self.refuses_at_mail = False
        self._deferred: Counter[str] = Counter()
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self.muddled: set[asyncio.StreamWriter] = set()
        """Connections that got an unasked reply: it is unknown which reply the relay understood."""
        self.calm()

    def feel(self, mood: Mood, seconds: float) -> None:
        """Take on a mood for a while; a later mood replaces it."""
        self.calm()
        self.mood, self.refuses_at_mail = mood, self.rng.random() < 0.5
        if mood is Mood.DOWN:
            self.loop.network.stop_serving(self.port)
        if mood is Mood.UNASKED:
            # The reply before may not have been understood either.
            for taken in self.ledger.taken:
                taken.is_told &= taken.true_ns < self.loop.clock.true_ns - SECOND_NS
        if mood in (Mood.UNASKED, Mood.DOWN):
            for writer in self._writers:
                if mood is Mood.DOWN:
                    writer.close()
                elif writer not in self.muddled:
                    # Only one unasked reply: a second one after an omitted reply would look like that reply.
                    self.muddled.add(writer)
                    writer.write(self.rng.choice((b"421 4.3.2 good bye\r\n", b"250 ok\r\n", b"\r\n")))
        number = self._mood_number
        self.loop.call_later(seconds, lambda: self.calm() if number == self._mood_number else None)

    def calm(self) -> None:
        self._mood_number += 1
        self.mood = None
        self.loop.network.serve(self.port, self._protocol)

    def note(
        self, what: str, sender: str = "", recipient: str = "", size: int = 0, recipients: int = 0
    ) -> None:
        self.ledger.seen.append(Seen(self.loop.clock.true_ns, what, sender, recipient, size, recipients))

    def defers(self, recipient: str) -> bool:
        """Return whether to defer a recipient: `later…` the first times, `never…` always."""
        if recipient.startswith("never"):
            return True
        return recipient.startswith("later") and self.is_early(recipient, DEFERRED_TIMES)

    def is_early(self, name: str, most: int) -> bool:
        """Return whether this name was seen at most `most` times, and count it."""
        self._deferred[name] += 1
        return self._deferred[name] <= most

    def _protocol(self) -> asyncio.Protocol:
        reader = asyncio.StreamReader(limit=1 << 22, loop=self.loop)
        return asyncio.StreamReaderProtocol(reader, self._connected, loop=self.loop)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = None
        since_ns = self.loop.clock.true_ns
        try:
            await _Session(self, reader, writer).run()
        except (ConnectionError, asyncio.IncompleteReadError, _Over):
            pass
        finally:
            del self._writers[writer]
            self.ledger.sessions.append((since_ns, self.loop.clock.true_ns))
            writer.close()


class _Over(Exception):  # noqa: N818 - how a session ends
    pass


class _Session:
    def __init__(
        self, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._upstream = upstream
        self._rng = upstream.rng
        self._reader = reader
        self._writer = writer
        self._sender: str | None = None
        self._asked = ""
        """The sender of the last MAIL, refused or not."""
        self._recipients: list[str] = []
        self._has_dsn = upstream.mood is not Mood.OFFERS_NO_DSN
        """Holds for the whole session, for every EHLO."""
        self._of_mail = ""
        self._of_rcpt: list[str] = []
        self._has_pipelining = upstream.rng.random() < 0.7
        self._begun_ns = self._said_ns = 0
        self._is_begun = self._is_muddled = False
        self._named = 0
        self._mails = 0

    @property
    def _mood(self) -> Mood | None:
        return self._upstream.mood

    async def run(self) -> None:
        self._upstream.note("connect")
        if self._mood is Mood.MUTE:
            await self._say_nothing(GREETING_S)
        if self._mood is Mood.BUSY:
            await self._say("421 4.3.2 too busy, come again")
            raise _Over
        await self._say("220 upstream.test ESMTP")
        try:
            while line := await self._reader.readuntil(b"\r\n"):
                await self._command(line.decode("utf-8", "surrogateescape").rstrip("\r\n"))
        finally:
            self._end()

    def _end(self) -> None:
        if self._is_begun:
            self._is_begun = False
            self._upstream.ledger.transactions.append((self._begun_ns, self._now_ns, self._named))

    @property
    def _now_ns(self) -> int:
        return self._upstream.loop.clock.true_ns

    async def _say_nothing(self, most_s: int = MAX_TRANSACTION_S) -> NoReturn:
        silence = Silence(self._now_ns, most_s * SECOND_NS)
        self._upstream.ledger.silences.append(silence)
        try:
            await self._reader.read()
        finally:
            silence.until_ns = self._now_ns
        raise _Over

    async def _command(self, line: str) -> None:
        verb = line[:4].upper()
        match verb:
            case "EHLO":
                lines = ["upstream.test", "8BITMIME", "SMTPUTF8", "SIZE 1000000"]
                lines += ["DSN"] if self._has_dsn else []
                lines += ["PIPELINING"] if self._has_pipelining else []
                marks = ["-"] * (len(lines) - 1) + [" "]
                await self._say(*(f"250{mark}{each}" for mark, each in zip(marks, lines, strict=True)))
            case "MAIL":
                await self._mail(_path(line), line)
            case "RCPT":
                await self._rcpt(_path(line), line.partition(">")[2])
            case "DATA" if self._sender is not None and self._recipients:
                await self._say("354 go ahead")
                await self._content()
            case "DATA":
                await self._say("554 5.5.1 no valid recipients")
            case "RSET":
                self._sender, self._recipients = None, []
                await self._say("250 2.0.0 ok")
                self._end()
            case "QUIT":
                self._upstream.ledger.idle.append((self._said_ns, self._now_ns))
                await self._say("221 2.0.0 bye")
                raise _Over
            case _:
                await self._say("502 5.5.1 what?")

    async def _mail(self, sender: str, line: str) -> None:
        self._end()
        self._mails, self._asked, self._begun_ns = self._mails + 1, sender, self._now_ns
        self._is_begun, self._is_muddled, self._named = True, False, 0
        size = next((int(word[5:]) for word in line.split() if word.startswith("SIZE=")), 0)
        self._upstream.note("mail", sender, size=size)
        if counts_at_mail(sender):
            self._upstream.note("counted", sender, size=size)
        match self._mood:
            case Mood.QUOTA_AT_MAIL:
                return await self._refuse_account()
            case Mood.BLOCKED:
                await self._refuse("554 5.0.0 rpd-7 zone closed", self._upstream.ledger.blocks, sender)
                return self._end()
            case Mood.GOES if self._mails > 1:
                await self._say("421 4.7.0 too many messages in this session")
                raise _Over
            case Mood.DEAF:
                await self._say_nothing()
        if sender.startswith("alien") and self._upstream.is_early(sender, ALIEN_TIMES):
            words = f"553 5.7.1 <{sender}>: Sender address rejected: not owned by user relay"
            await self._refuse(words, self._upstream.ledger.aliens, sender)
            return self._end()
        self._of_mail = "".join(f" {word}" for word in line.split() if word.startswith(("RET=", "ENVID=")))
        if self._of_mail and self._mood is Mood.REFUSES_DSN and self._upstream.refuses_at_mail:
            return await self._refuse_dsn()
        self._sender, self._recipients, self._of_rcpt = sender, [], []
        await self._say("250 2.1.0 ok")
        return None

    async def _refuse_account(self) -> None:
        words, rest_s = self._rng.choice(QUOTAS)
        await self._say(words)
        if self._is_connected:
            self._upstream.ledger.refusals.append((self._now_ns, self._now_ns + rest_s * SECOND_NS))
        self._end()

    async def _refuse_dsn(self) -> None:
        self._upstream.ledger.refused_dsn = True
        await self._say("501 5.5.4 no such parameter")

    async def _rcpt(self, recipient: str, asked: str) -> None:
        self._upstream.note("rcpt", self._asked, recipient)
        self._named += 1
        if self._mood is Mood.DROPS:
            raise _Over
        if self._sender is None:
            return await self._say("503 5.5.1 MAIL first")
        if asked and self._mood is Mood.REFUSES_DSN:
            return await self._refuse_dsn()
        if self._mood in (Mood.LEAVES, Mood.ADDS, Mood.OMITS) and await self._is_out_of_step():
            return None
        if len(self._recipients) >= self._upstream.most_recipients:
            return await self._say("452 4.5.3 too many recipients")
        if recipient.startswith("bad"):
            self._upstream.ledger.proofs.append(self._now_ns)
            # The reply prints addresses, which are not the upstream's own words.
            return await self._say(f"550 5.1.1 <{recipient}> from <{self._sender}>: nobody of that name")
        if self._mood is Mood.GREYLIST or self._upstream.defers(recipient):
            return await self._refuse("451 4.7.1 come again", self._upstream.ledger.deferrals, recipient)
        self._recipients.append(recipient)
        self._of_rcpt.append(asked)
        await self._say("250 2.1.5 ok")
        return None

    async def _is_out_of_step(self) -> bool:
        """Say too much or too little. Return whether this RCPT gets no further reply."""
        if self._mood is Mood.LEAVES:
            await self._say(f"550 5.1.1 {self._new_word()}")
            raise _Over
        self._upstream.muddled.add(self._writer)
        if self._is_muddled:
            return False
        self._is_muddled = True
        if self._mood is Mood.ADDS:
            await self._say("550 5.1.1 nobody of that name")
        return self._mood is Mood.OMITS

    async def _refuse(self, words: str, noted: list[tuple[int, str]], *who: str) -> None:
        """Say the refusal. Note the refused, unless the client cannot have heard it."""
        await self._say(words)
        if self._is_connected:
            noted += [(self._now_ns, each) for each in who]

    def _new_word(self) -> str:
        self._upstream.words += 1
        return "".join(chr(97 + int(digit)) for digit in str(self._upstream.words))

    async def _content(self) -> None:
        lines = bytearray()
        while (line := await self._reader.readuntil(b"\r\n")) != b".\r\n":
            lines += line[1:] if line.startswith(b".") else line
        sender, recipients, content = self._sender or "", tuple(self._recipients), bytes(lines)
        dsn = tuple(self._of_rcpt) if self._has_dsn else None
        self._sender, self._recipients = None, []
        upstream, mood = self._upstream, self._mood
        upstream.note("dot", sender, size=len(lines), recipients=len(recipients))
        if mood is Mood.QUOTA_AT_DOT:
            self._count_late(sender, len(lines))
            return await self._refuse_account()
        if refusal := self._refusal_of(content, sender, recipients[0]):
            self._count_late(sender, len(lines))
            if refusal[0] == "5":
                upstream.ledger.proofs.append(self._now_ns)
                await self._say(refusal)
            else:
                await self._refuse(refusal, upstream.ledger.deferrals, *recipients)
            return self._end()
        is_lost = mood in (Mood.HANGS, Mood.HANGS_UP)
        if is_lost:
            # The upstream may decide and count after the client has stopped listening.
            upstream.loop.call_later(self._rng.uniform(0, LOST_REPLY_S), self._count_late, sender, len(lines))
        else:
            await asyncio.sleep(self._rng.choice((0.0, 0.01, 0.4, 2.0)))
        whose = self._transport.peer.context.get(LIFE)
        host = whose.name if whose else ""
        taken = Taken(
            self._now_ns, upstream.name, sender, recipients, content, self._begun_ns, dsn, self._of_mail, host
        )
        upstream.ledger.taken.append(taken)
        upstream.ledger.proofs.append(self._now_ns)
        if mood is Mood.HANGS:
            await self._say_nothing()
        if is_lost:
            raise _Over
        self._count_late(sender, len(lines))
        await self._say("250 2.0.0 taken")
        taken.is_told = self._is_connected
        self._end()
        return None

    def _refusal_of(self, content: bytes, sender: str, recipient: str) -> str:
        """Return a refusal that quotes the client's own words, or an empty string."""
        subject = content.partition(b"Subject: ")[2].partition(b"\r\n")[0].decode()
        said = self._rng.choice((f'"{subject}" from <{sender}>', f"Subject: {subject}", f"<{recipient}>"))
        if recipient.startswith("junk"):
            # The relay defers on words that may be the client's own; the last refusal comes without them.
            said = said if self._upstream.is_early(recipient, DEFERRED_TIMES) else f"<{recipient}>"
            return f"554 5.6.0 Message refused: {said}"
        if recipient.startswith("slow") and self._upstream.is_early(recipient, DEFERRED_TIMES):
            return f"451 4.6.0 Message put off: {said}"
        return ""

    @property
    def _transport(self) -> Transport:
        transport = self._writer.transport
        assert isinstance(transport, Transport)
        return transport

    @property
    def _is_connected(self) -> bool:
        transport = self._transport
        is_lost = transport.peer.is_lost or transport.is_closing() or transport.is_cut
        return not is_lost and self._writer not in self._upstream.muddled

    def _count_late(self, sender: str, size: int) -> None:
        if not counts_at_mail(sender):
            self._upstream.note("counted", sender, size=size)

    async def _say(self, *lines: str) -> None:
        await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.001, 0.05)))
        octets = "".join(line + "\r\n" for line in lines).encode()
        if self._mood is Mood.ODD and not octets.startswith((b"354", b"220")):
            octets = self._rng.choice(ODD)(octets)
        self._writer.write(octets)
        await self._writer.drain()
        self._said_ns = self._now_ns


def counts_at_mail(sender: str) -> bool:
    return sum(sender.encode(errors="replace")) % 2 == 0


def _path(line: str) -> str:
    return line.partition("<")[2].partition(">")[0]
