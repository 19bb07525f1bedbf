"""Replies that are not as RFC 5321 has them: read where their code can be read, else a deferral."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.queue.queued import State
from tests.fakes.smarthost import Script, Smarthost, at, turns
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock

DAY_NS = 86_400 * SECOND_NS
SLOWLY = "retry: {min: 1h, max: 2h, lifetime: 1d, warn_after: null}"
LONG = b"x" * 3000
ENDLESS = b"x" * 200_000


@pytest.mark.parametrize(
    "octets",
    [
        b"250 " + LONG + b"\r\n",
        b"250 " + ENDLESS + b"\r\n",
        b"250 ok\n",
        b"250-ok\n250 ok\r\n",
        b"250 o\rk\r\n",
        b"250 ok\nqueued as 1\r\n",
    ],
    ids=["long", "endless", "LF", "LF and CRLF", "CR inside", "LF inside"],
)
async def test_a_message_taken_in_an_odd_line_leaves_once(tmp_path: Path, octets: bytes) -> None:
    async with (
        Smarthost(Script(eod=turns(octets, octets, octets))) as host,
        Relay(policy_of(tmp_path, host.port)) as relay,
    ):
        relay.accept()
        await relay.until_empty()

        assert len(host.transactions) == 1


@pytest.mark.parametrize(("phase", "said"), [("rcpt", b"550 5.1.1 no"), ("eod", b"554 5.6.0 no")])
@pytest.mark.parametrize("end", [LONG + b"\r\n", b"\n"], ids=["long", "LF"])
async def test_a_refusal_in_an_odd_line_bounces(tmp_path: Path, phase: str, said: bytes, end: bytes) -> None:
    async with (
        Smarthost(at(phase, turns(said + end))) as host,
        Relay(policy_of(tmp_path, host.port)) as relay,
    ):
        relay.accept()
        await relay.until_empty()

        (report,) = host.relayed
        assert report.reverse_path == ""
        assert said[:9] in report.content


@pytest.mark.parametrize(
    "octets",
    [
        b"2500 ok\r\n",
        b"250-ok\r\n550 no\r\n",
        b"554 5.6.0 no\r\n250 ok\r\n",
        b"354 go\r\n",
        b"250-\n" * 50_000,
    ],
    ids=["no code", "two codes", "two replies", "of another command", "no last line"],
)
async def test_a_message_whose_reply_cannot_be_read_is_backed_off_and_expires(
    tmp_path: Path, octets: bytes
) -> None:
    clock = virtual_clock()
    async with (
        Smarthost(Script(eod=turns(octets, octets))) as host,
        Relay(policy_of(tmp_path, host.port, "", SLOWLY)) as relay,
    ):
        queue_id = relay.accept()
        await relay.until(lambda: (q := relay.queued(queue_id)) and q.state is State.DEFERRED)
        assert len(host.transactions) == 1
        clock.advance(2 * DAY_NS)
        relay.account.wake()
        await relay.until_empty()

        assert [each.reverse_path for each in host.transactions] == ["a@here.example"] * 2 + [""]
        assert b"Action: failed" in host.transactions[-1].content
