"""Any octets of an upstream in any phase give one answer for each recipient, never a false RELAYED."""

import asyncio
import re
from collections.abc import AsyncGenerator

from relay.clock import SystemClock
from relay.mail.envelope import Shape
from relay.policy.shipped import standard_rules
from relay.smtp.extensions import Extensions
from relay.upstream.connection import Connection
from relay.upstream.protocol import Broken, StrictProtocol, Timeouts
from relay.upstream.transaction import Channel, Transaction
from relay.verdicts.outcome import Outcome
from relay.verdicts.verdict import Judge, Verdict
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.fuzz.choices import Choices
from tests.fuzz.wire import connected, exchanged

TOKENS = [
    b"220 hi\r\n", b"250 ok\r\n", b"250 ok\r\n", b"250 2.1.5 ok\r\n", b"354 go\r\n",
    b"354 go\r\n250 queued\r\n", b"250-a\r\n250 b\r\n", b"421 4.3.2 bye\r\n", b"450 4.2.0 later\r\n",
    b"452 4.5.3 too many\r\n", b"550 5.1.1 no\r\n", b"554 5.7.1 blocked\r\n", b"535 5.7.8 who?\r\n",
    b"251 elsewhere\r\n", b"250", b" ", b"-", b"\r", b"\n", b"\r\n", b"\0", b"\xff", b"x" * 2050,
    b"200 ok\r\n",
]  # fmt: skip
GREETING = b"220 mx.example.net\r\n"
DUE = [
    b"250 ok\r\n",
    b"250 a\r\n",
    b"251 b\r\n",
    b"250 c\r\n",
    b"354 go\r\n",
    b"250 queued\r\n",
    b"221 bye\r\n",
]
"""The replies due to MAIL, three RCPT, DATA, the dot and QUIT."""
RECIPIENTS = ("a@example.net", "b@example.net", "c@example.net")
CONTENT = (b"Subject: x\r\n\r\n", b".dot\r\n" * 20_000)
EXTENSIONS = Extensions(has_size=True, eight_bit=True)
_CODE = re.compile(rb"(?m)^([2-5][0-9][0-9])(?: |\r|\Z)")


def target(raw: bytes) -> None:
    choices = Choices(raw)
    if choices.yes():
        octets = b"".join(_said(choices))
        octets = choices.spoiled(octets, TOKENS)
        # Mostly one piece for each reply, so that some sessions get far.
        pieces = octets.splitlines(keepends=True) if choices.number(4) else choices.pieces(octets)
    else:
        pieces = choices.rest_in_pieces()
        octets = b"".join(pieces)
    pauses = [choices.number(4) < 3 for _ in pieces]
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        outcome, sent = runner.run(_transacted(pieces, pauses))
    if outcome is None:
        return
    assert len(outcome.answers) == len(RECIPIENTS)
    for answer in outcome.answers:
        assert answer.text.isascii()
        assert answer.text.isprintable()
        if answer.verdict is Verdict.BOUNCE:
            assert answer.reply is not None
            assert answer.reply.is_permanent
    relayed = [answer for answer in outcome.answers if answer.verdict is Verdict.RELAYED]
    assert not (relayed and outcome.is_ambiguous)
    if relayed or outcome.is_ambiguous:
        assert sent.count(b"\r\n.\r\n") == 1
        assert sent.find(b"\r\n.\r\n") > sent.find(b"DATA\r\n") > 0
    if relayed:
        # MAIL, at least one RCPT, DATA and the dot got the replies that a relayed message needs.
        codes = _CODE.findall(octets)
        place = codes.index(b"354")
        assert codes[0] == b"250"
        assert {b"250", b"251", b"252"} & set(codes[1:place])
        assert b"250" in codes[place + 1 :]
    if not sent.count(b"DATA\r\n"):
        assert b"Subject" not in sent


def _said(choices: Choices) -> list[bytes]:
    said = [choices.pick(TOKENS) if choices.number(5) == 4 else reply for reply in DUE]
    return said[: choices.number(3 * len(said)) + 1] + [choices.pick(TOKENS)] * choices.number(3)


async def _transacted(pieces: list[bytes], pauses: list[bool]) -> tuple[Outcome | None, bytes]:
    protocol, upstream = await connected(StrictProtocol(asyncio.get_running_loop()))
    relaying = asyncio.create_task(_relay(protocol))
    sent = await exchanged(upstream, [GREETING, *pieces], [True, *pauses])
    return await relaying, sent


async def _relay(protocol: StrictProtocol) -> Outcome | None:
    """Do as the sender does: wait for the greeting, relay one message, say QUIT."""
    timeouts = Timeouts()
    try:
        await protocol.reply(timeouts.greeting_s)
    except Broken:
        return None
    channel = Channel(protocol, EXTENSIONS, timeouts, Judge(standard_rules()), b"EHLO me")
    connection = Connection(channel, name="fuzz", opened_at_ns=SystemClock().boottime_ns())
    shape = Shape(sum(map(len, CONTENT)), eight_bit=False, smtputf8=False)
    outcome = await connection.transact(Transaction("s@example.com", RECIPIENTS, shape, _content))
    await connection.close()
    return outcome


async def _content() -> AsyncGenerator[bytes, None]:
    for chunk in CONTENT:
        yield chunk


SEEDS = [
    b"\0\x07" + b"250 ok\r\n250 ok\r\n250 ok\r\n250 ok\r\n354 go\r\n250 queued\r\n",
    b"\1" + b"\0" * 7 + b"\7",
    b"\1\0\4\12\0\4\7\0\0\0\7\0\0\2" + b"\2" * 12,
]
