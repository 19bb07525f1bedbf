"""The practice account against an oracle that tries every window, and the practice smarthost through SMTP."""

import asyncio
import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.policy.lane import LimitSettings
from relay.policy.units import HostPort
from relay.practice.smarthost import PracticeAccount, PracticeSmarthost
from relay.smtp.sasl import Credentials
from tests.fakes.clock import FakeClock

PER_NS = 60 * SECOND_NS
PLAIN = base64.b64encode(b"\0mjd\0correct horse").decode()
MESSAGE = b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nSubject: x\r\n\r\nHello\r\n.\r\n"
ATTEMPTS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=40)


def account(count: int, unit: str = "messages", cut_off_ns: int = 10 * PER_NS) -> PracticeAccount:
    return PracticeAccount(LimitSettings.model_validate({unit: count, "per": "60s"}), cut_off_ns)


@given(steps=ATTEMPTS, count=st.integers(1, 12))
def test_a_message_is_refused_if_it_would_overfill_a_window(steps: list[tuple[int, int]], count: int) -> None:
    judged, so_far, now_ns, fullest = account(count, "recipients", cut_off_ns=0), [], PER_NS, 0
    for step, recipients in steps:
        now_ns += step * PER_NS // 10
        so_far.append((now_ns, recipients))
        held = sum(weight for at_ns, weight in so_far if now_ns - PER_NS < at_ns <= now_ns)
        fullest = max(fullest, held)

        assert judged.admit(recipients, now_ns) == (held <= count)

    assert judged.most == fullest
    assert judged.relayed + judged.refused == len(steps)


def test_a_cut_off_ends_on_time_and_no_attempt_lengthens_it() -> None:
    judged, began_ns = account(1), 1 + PER_NS
    assert judged.admit(9, PER_NS)
    assert not judged.admit(1, began_ns)

    assert not judged.admit(1, began_ns + 3 * PER_NS)
    assert not judged.admit(1, began_ns + 10 * PER_NS - 1)
    assert judged.admit(1, began_ns + 10 * PER_NS)
    assert (judged.cut_offs, judged.refused, judged.most) == (1, 3, 2)


def smarthost(count: int = 1000, keep: Path | None = None) -> PracticeSmarthost:
    credentials = Credentials("mjd", "correct horse")
    return PracticeSmarthost(HostPort("127.0.0.1", 0), credentials, account(count), FakeClock(), keep=keep)


async def reply(reader: asyncio.StreamReader) -> str:
    while (line := (await reader.readuntil(b"\r\n")).decode("ascii"))[3] == "-":
        pass
    return line.removesuffix("\r\n")


async def replies(host: PracticeSmarthost, said: bytes, step: int = 0) -> list[str]:
    """Log in, send `said` in pieces of `step` octets, and quit; return the replies after the login."""
    said = f"EHLO client.example\r\nAUTH PLAIN {PLAIN}\r\n".encode() + said + b"QUIT\r\n"
    step = step or len(said)
    await host.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
    for start in range(0, len(said), step):
        writer.write(said[start : start + step])
        await writer.drain()
    found = [await reply(reader)]
    while not found[-1].startswith("221"):
        found.append(await reply(reader))
    writer.close()
    await host.close()
    return found[3:]


async def test_the_limit_is_enforced_and_named_in_the_reply() -> None:
    decided = (await replies(smarthost(3), 4 * MESSAGE))[3::4]

    assert [each[:9] for each in decided[:3]] == ["250 2.0.0"] * 3
    assert decided[3] == "550 5.7.1 You have exceeded your sending limit of 3 messages per 1m"


@pytest.mark.parametrize("step", [1, 0])
async def test_pipelined_commands_are_answered_in_order_however_cut(step: int, tmp_path: Path) -> None:
    said = b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n..stuffed\r\n.\n.\r\n\n..\r\n.\r\nNOOP\r\n"
    found = await replies(smarthost(keep=tmp_path), said + MESSAGE, step)

    # Neither LF.CRLF nor a dot with LF ends the content: it is one message, up to CRLF.CRLF.
    codes = ["250", "250", "354", "250", "250", "250", "250", "354", "250", "221"]
    assert [each[:3] for each in found] == codes
    assert (tmp_path / "000001.eml").read_bytes() == b".stuffed\r\n\n.\r\n\n..\r\n"
    assert (tmp_path / "000002.eml").read_bytes() == b"Subject: x\r\n\r\nHello\r\n"


async def test_kept_messages_are_numbered_behind_those_already_there(tmp_path: Path) -> None:
    keep = tmp_path / "made" / "on demand"
    await replies(smarthost(keep=keep), MESSAGE)

    assert (await replies(smarthost(keep=keep), MESSAGE))[3] == "250 2.0.0 Ok: practised as 2"
    assert sorted(path.name for path in keep.iterdir()) == ["000001.eml", "000002.eml"]
