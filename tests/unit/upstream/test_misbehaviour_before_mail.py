"""The catalogue of misbehaviour from the greeting to the login: no message is ever blamed for any of it."""

from dataclasses import replace

import pytest

from relay.clock import SystemClock
from relay.smtp.reply import Phase
from relay.upstream.connection import UpstreamUnavailable, open_connection
from relay.upstream.timeouts import Timeouts
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import SILENCE, Smarthost, Turn, at
from tests.unit.upstream.faults import AN_END, GARBAGE, MEANINGLESS, REFUSALS, table
from tests.unit.upstream.sessions import SOON_S, account


@pytest.mark.parametrize("phase", ["connect", "ehlo", "auth", "challenge"])
@table(AN_END | GARBAGE | MEANINGLESS | {name: turn for name, (turn, _) in REFUSALS.items()})
async def test_nothing_before_mail_touches_a_message(phase: str, turn: Turn) -> None:
    due = {"connect": "220 hello again", "auth": "235 2.7.0 logged in", "challenge": "334 VXNlcm5hbWU6"}
    if turn == due.get(phase):
        turn = "299 what?"  # what is due there is no misbehaviour
    mechanisms = ["LOGIN"] if phase == "challenge" else ["PLAIN"]
    async with Smarthost(at(phase, turn), accounts={"u": "p"}, mechanisms=mechanisms) as host:
        with pytest.raises(UpstreamUnavailable) as caught:
            await open_connection(account(host, user="u", password="p"), SystemClock())

        answer = caught.value.answer
        assert answer.is_about_us
        assert answer.phase is (Phase.AUTH if phase == "challenge" else Phase(phase))
        assert answer.text.isprintable()
        await host.until(lambda: all(not session.is_open for session in host.sessions))
        assert not [command for command in host.commands if command.startswith("MAIL")]


@pytest.mark.parametrize("phase", ["connect", "ehlo", "auth"])
async def test_an_upstream_that_hangs_before_mail_is_left_in_time(phase: str) -> None:
    name = {"connect": "greeting_s", "ehlo": "hello_s", "auth": "auth_s"}[phase]
    async with Smarthost(at(phase, SILENCE), accounts={"u": "p"}, mechanisms=["PLAIN"]) as host:
        with pytest.raises(UpstreamUnavailable, match="within") as caught:
            await open_connection(
                account(host, user="u", password="p"), SystemClock(), replace(Timeouts(), **{name: SOON_S})
            )

        assert (caught.value.answer.verdict, caught.value.answer.phase) == (Verdict.PAUSE, Phase(phase))
