"""A client that sends any octets in any phase gets replies or a close, the same however they are cut."""

import asyncio
import re
from dataclasses import dataclass

from relay.listener.access import Client
from relay.listener.listener_files import ListenerFiles
from relay.listener.listener_state import ListenerState
from relay.listener.session import ClientSession
from relay.policy.model import Listen
from relay.smtp.commands import MAX_LINE_BYTES
from tests.fakes.clock import FakeClock
from tests.fakes.intake import Accepted, MemoryIntake, MemoryObserver
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.fuzz.choices import Choices
from tests.fuzz.wire import connected, exchanged

LONG = b"x" * (MAX_LINE_BYTES + 1)
TOKENS = [
    b"\r\n", b"\n", b"\r", b"\0", b".", b" ", b"\t", b":", b"<", b">", b"\xff", b"\r\n.\r\n", b"\n.\n",
    b"\r\n..\r\n", LONG, b"EHLO x\r\n", b"HELO x\r\n", b"NOOP\r\n", b"RSET\r\n", b"QUIT\r\n", b"DATA\r\n",
    b"HELP\r\n", b"VRFY x\r\n", b"MAIL FROM:<a@b>\r\n", b"MAIL FROM:<>", b" SIZE=9", b" SMTPUTF8",
    b" BODY=8BITMIME", b" AUTH=<>", b" RET=HDRS",
    b" ENVID=a+2Bb", b" NOTIFY=DELAY", b" ORCPT=rfc822;x",
    b"EXPN x\r\n", b"RCPT TO:<c@d>\r\n", b"RCPT TO:<\xc3\xa9@d>\r\n",
    b"RCPT TO:", b"STARTTLS\r\n", b"AUTH PLAIN AGEAYg==\r\n",
    b"EHLO x\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n", b"Subject: x\r\n\r\n", b"Received: x\r\n",
    b"GET / HTTP/1.1\r\n",
]  # fmt: skip
DUE = [
    b"EHLO x\r\n", b"MAIL FROM:<a@b>\r\n", b"RCPT TO:<c@d>\r\n",
    b"DATA\r\n", b"Subject: x\r\n\r\n", b"..\r\n", b".\r\n",
]  # fmt: skip
LISTEN = Listen.model_validate(
    {
        "address": "127.0.0.1:0",
        "clients": ["127.0.0.0/8"],
        "max_size": 5000,
        "max_recipients": 3,
        "max_hops": 3,
    },
    strict=False,
)
_REPLIES = re.compile(rb"(?:[2-5][0-9][0-9]-[ -~]*\r\n)*(?:[2-5][0-9][0-9] [ -~]*\r\n)")


@dataclass(frozen=True)
class Heard:
    """All that the client, the intake and the observer learn of a session."""

    replies: bytes
    accepted: tuple[Accepted, ...]
    refusals: tuple[tuple[str, str], ...]
    reason: str


def target(raw: bytes) -> None:
    choices = Choices(raw)
    if choices.yes():
        octets = choices.spoiled(b"".join(_said(choices)), TOKENS)
        pieces = choices.pieces(octets)
        pauses = [choices.yes() for _ in pieces]
    else:
        pieces = choices.rest_in_pieces()
        octets, pauses = b"".join(pieces), [True] * len(pieces)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        whole = runner.run(_heard([octets], [False]))
        in_pieces = runner.run(_heard(pieces, pauses))

    assert in_pieces == whole
    assert _REPLIES.sub(b"", whole.replies) == b""
    assert b"451" not in whole.replies
    assert whole.replies.count(b"queued as") == len(whole.accepted)
    assert whole.reason in {"quit", "lost", "errors", "refused"}


def _said(choices: Choices) -> list[bytes]:
    said: list[bytes] = []
    for _ in range(1 + choices.number(2)):
        said += [choices.pick(TOKENS) if choices.number(8) == 7 else each for each in DUE]
    return said + [choices.pick(TOKENS) for _ in range(choices.number(8))]


async def _heard(pieces: list[bytes], pauses: list[bool]) -> Heard:
    intake, observer = MemoryIntake(), MemoryObserver()
    listener = ListenerState(
        LISTEN, "relay.example", intake, observer, files=ListenerFiles({}, None), clock=FakeClock()
    )
    place = listener.place_for(Client.of_peer("127.0.0.1"))
    assert listener.admission.enter(place) is None
    session, client = await connected(ClientSession(listener, place))
    replies = await exchanged(client, pieces, pauses)
    await session.task

    assert observer.faults == []
    assert listener.admission.total == 0
    assert len(observer.closed) == 1
    assert not intake.open_drafts
    return Heard(replies, tuple(intake.accepted), tuple(observer.refusals), observer.closed[0])


SEEDS = [
    b"\0\x04EHLO x\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nSubject: x\r\n\r\n..\r\n.\r\nQUIT\r\n",
    b"\0\x40\0" + LONG + b"\r\nNOOP\r\n",
    # A control character before a line that is too long: the reply must not depend on the cut.
    b"\0\x10\0" + b"x" * 3000 + b"\r\nNOOP\r\n",
    b"\1\6\17\27\40\42\22\23\0\0\0\3\5\40\100\1\0\1",
]
