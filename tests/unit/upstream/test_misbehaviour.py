"""One table of what upstreams do in a transaction, and what becomes of the message.

A recipient counts as relayed exactly if a perfect 250 answered the final dot; it bounces only by a perfect
5yz that answered its own command; where the dot is out and no proper reply came, nobody knows.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from relay.clock import SystemClock
from relay.smtp.reply import Phase
from relay.upstream.connection import Connection, UpstreamUnavailable, open_connection
from relay.upstream.protocol import Timeouts
from relay.verdicts.outcome import Outcome
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import (
    CLOSE,
    DEFAULT,
    HALF_CLOSE,
    PATIENCE_S,
    RESET,
    SILENCE,
    Drip,
    Script,
    Smarthost,
    Turn,
    at,
    turns,
)
from tests.unit.upstream.sessions import SOON_S, account, connected, transaction, verdicts

RELAYED, DEFER, LATER, BOUNCE, PAUSE = (
    *(Verdict.RELAYED, Verdict.DEFER, Verdict.LATER, Verdict.BOUNCE, Verdict.PAUSE),
)
BY_LETTER = {"R": RELAYED, "D": DEFER, "U": DEFER, "L": LATER, "B": BOUNCE, "P": PAUSE}
IN_TRANSACTION = ["mail", "rcpt", "data", "eod"]
NOBODY, BUSY, OK = "550 5.1.1 who?", "450 4.2.1 busy", "250 2.1.5 ok"
ENDS: dict[str, Turn] = {"close": CLOSE, "reset": RESET, "421": "421 4.3.2 closing"}
REFUSALS: dict[str, tuple[Turn, Verdict]] = {
    "4yz": ("451 4.3.0 later", DEFER),
    "4yz bare": ("451", DEFER),
    "5yz": ("554 5.6.0 no", BOUNCE),
    "5yz in many lines": (b"554-5.6.0 no\r\n554-5.6.0 no\r\n554 5.6.0 never\r\n", BOUNCE),
    "5yz octet by octet": (Drip(b"554 5.6.0 no\r\n"), BOUNCE),
    "5yz in a line of LF": (b"554 5.6.0 no\n", BOUNCE),
    "5yz in 50 kB": (b"554-5.6.0 and so on\r\n" * 2300 + b"554 5.6.0 no\r\n", BOUNCE),
    "5yz with a code that contradicts": ("550 4.2.1 no", BOUNCE),
    "530": ("530 5.7.0 log in first", Verdict.STOP),
    "X.4.5": ("550 5.4.5 daily limit", PAUSE),
    "421": ("421 4.3.2 closing", PAUSE),
    "421, then gone": (["421 4.3.2 closing", CLOSE], PAUSE),
}
AN_END: dict[str, Turn] = {
    "nothing, closed": CLOSE,
    "nothing, reset": RESET,
    "nothing, half closed": HALF_CLOSE,
    "25, closed": [b"25", CLOSE],
    "250 x CR, closed": [b"250 x\r", CLOSE],
    "250-x, closed": [b"250-x\r\n", CLOSE],
    "550 without its end, closed": [b"550 5.1.1 no", CLOSE],
    "550-x, closed": [b"550-5.1.1 no\r\n", CLOSE],
    "550 without its end, reset": [b"550 5.1.1 no", RESET],
    "250 without its end, half closed": [b"250 ok", HALF_CLOSE],
}
GARBAGE: dict[str, Turn] = {  # all that is no reply: tests/unit/smtp/test_reply
    "no space": b"250ok\r\n",
    "LF and a code inside": b"550 5.1.1 no\n250 ok\r\n",
    "TLS alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "noise without end": b"\xff" * 3000,
    "two replies at once": [DEFAULT, DEFAULT],
    "the same refusal twice at once": b"554 5.6.0 no\r\n554 5.6.0 no\r\n",
    "refused and accepted at once": b"554 5.6.0 no\r\n250 2.0.0 ok\r\n",
    "a reply and half of one": [DEFAULT, b"25"],
    "a reply without end": b"554-5.6.0 and so on\r\n" * 5000,
}  # fmt: skip
MEANINGLESS: dict[str, Turn] = {
    "200": "200 fine",
    "220": "220 hello again",
    "235": "235 2.7.0 logged in",
    "334": "334 VXNlcm5hbWU6",
    "299": "299 what?",
}


def table(of: dict[str, Turn]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("turn", list(of.values()), ids=list(of))


async def attempt(connection: Connection, host: Smarthost) -> Outcome:
    """Do a transaction, and check what holds whatever happens."""
    before = len(host.relayed)
    outcome = await connection.transact(transaction())
    assert len(outcome.answers) == 3
    for answer in outcome.answers:
        assert answer.text.isprintable()
        if answer.verdict is RELAYED:
            assert len(host.relayed) > before
        if answer.verdict is BOUNCE:
            assert answer.reply is not None
            assert answer.reply.is_permanent
    pauses = [answer for answer in outcome.answers if answer.is_about_us]
    assert outcome.pause == (pauses[0] if pauses else None)
    if outcome.is_ambiguous:
        assert host.transactions
    return outcome


async def gone_or_spoken(connection: Connection) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while connection.is_usable:  # noqa: ASYNC110 - what is waited for is what the loop reads
            await asyncio.sleep(0)


@pytest.mark.parametrize("phase", IN_TRANSACTION)
@pytest.mark.parametrize(("turn", "expected"), list(REFUSALS.values()), ids=list(REFUSALS))
async def test_a_proper_refusal_is_believed(phase: str, turn: Turn, expected: Verdict) -> None:
    async with Smarthost(at(phase, turn)) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == [expected] * 3
        assert {answer.phase for answer in outcome.answers} == {Phase(phase)}
        assert not outcome.is_ambiguous
        assert not host.relayed
        if connection.is_usable:
            host.script = Script()
            assert verdicts(await attempt(connection, host)) == [RELAYED] * 3
        else:
            assert "421" in str(turn)


@pytest.mark.asyncio(loop_factories=["asyncio", "asyncio, in turn"])
@pytest.mark.parametrize("phase", IN_TRANSACTION)
@table(AN_END | GARBAGE | MEANINGLESS)
async def test_what_is_no_whole_and_proper_reply_decides_nothing(phase: str, turn: Turn) -> None:
    async with Smarthost(at(phase, turn)) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == [DEFER] * 3
        assert outcome.is_ambiguous == (phase == "eod")
        assert {answer.reply for answer in outcome.answers} == {None}
        assert not connection.is_usable
        assert bool(host.transactions) == (phase == "eod")


ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "each is settled by its own reply": ("DRB", {"rcpt": (BUSY, OK, NOBODY)}),
    "251 is accepted": ("RRR", {"rcpt": "251 forwarded"}),
    "252 is accepted": ("RRR", {"rcpt": "252 will try"}),
    # Recipients beyond the upstream's number come later; where it says so to the first, they would for ever.
    "too many": ("RLL", {"rcpt": (OK, "452 4.5.3 too many", "452 4.5.3 too many")}),
    "too many, bare": ("RLL", {"rcpt": (OK, "452 too many", "452 too many")}),
    "too many for good": ("RLL", {"rcpt": (OK, "552 5.5.3 too many", "552 5.5.3 too many")}),
    "too many already": ("DDD", {"rcpt": "452 too many"}),
    "354 to MAIL": ("DDD", {"mail": "354 go"}),
    "251 to MAIL": ("DDD", {"mail": "251 ok"}),
    "354 to RCPT": ("DDD", {"rcpt": "354 go"}),
    "250 to DATA": ("DDD", {"data": "250 ok"}),
    "251 to the dot": ("DDD?", {"eod": "251 ok"}),
    "354 to the dot": ("DDD?", {"eod": "354 go"}),
    # A perfect 250 relays, whatever follows.
    "250, then 421": ("RRR", {"eod": b"250 2.0.0 ok\r\n421 4.7.0 enough of you\r\n"}),
    "250, then close": ("RRR", {"eod": [b"250 2.0.0 ok\r\n", CLOSE]}),
    "250, then reset": ("RRR", {"eod": [b"250 2.0.0 ok\r\n", RESET]}),
    "250, then half-close": ("RRR", {"eod": [b"250 2.0.0 ok\r\n", HALF_CLOSE]}),
    "250, then rubbish": ("RRR", {"eod": b"250 2.0.0 ok\r\nrubbish\r\n"}),
    "250 drip": ("RRR", {"eod": Drip(b"250-2.0.0 ok\r\n250\r\n")}),
    "250 in 8 bits": ("RRR", {"eod": b"250 2.0.0 \xe2\x9c\x93 \x1b[1m\r\n"}),
    "421 to the dot, then 250": ("DDD?", {"eod": b"421 4.3.2 closing\r\n250 2.0.0 taken\r\n"}),
    "421 to the dot, then half": ("DDD?", {"eod": b"421 4.3.2 closing\r\n2"}),
    # 421 behind a reply holds for what comes next.
    "MAIL, then 421": ("PPP", {"mail": [DEFAULT, b"421 4.3.2 going down\r\n"]}),
    "RCPT, then 421": ("PPP", {"rcpt": [DEFAULT, b"421 4.3.2 going down\r\n"]}),
    "DATA, then 421": ("PPP", {"data": [DEFAULT, b"421 4.3.2 going down\r\n"]}),
    # Whether the last word answered its own command, nothing behind it tells: U.
    "MAIL refused, then close": ("UUU", {"mail": ["554 5.6.0 no", CLOSE]}),
    "RCPT refused, then close": ("UDD", {"rcpt": ["554 5.6.0 no", CLOSE]}),
    "DATA refused, then close": ("UUU", {"data": ["554 5.6.0 no", CLOSE]}),
    "dot refused, then close": ("UUU", {"eod": ["554 5.6.0 no", CLOSE]}),
    "MAIL refused, then 421": ("UUU", {"mail": b"554 5.6.0 no\r\n421 4.7.0 go away\r\n"}),
    "RCPT refused, then 421": ("UPP", {"rcpt": b"554 5.6.0 no\r\n421 4.7.0 go away\r\n"}),
    "dot refused, then 421": ("UUU", {"eod": b"554 5.6.0 no\r\n421 4.7.0 go away\r\n"}),
    # A refused recipient stays refused behind 354, which proves it.
    **{f"{end} at RCPT": ("UPP" if end == "421" else "UDD", {"rcpt": (NOBODY, OK, turn)})
       for end, turn in ENDS.items()},
    **{f"{end} at DATA": ("UPP" if end == "421" else "UDD", {"rcpt": (NOBODY, OK), "data": turn})
       for end, turn in ENDS.items()},
    **{f"{end} at the dot": ("BPP" if end == "421" else "BDD?", {"rcpt": (NOBODY, OK), "eod": turn})
       for end, turn in ENDS.items()},
    "noise at RCPT": ("DDD", {"rcpt": (NOBODY, OK, b"rubbish\r\n")}),
    "noise at DATA": ("DDD", {"rcpt": (NOBODY, OK), "data": b"rubbish\r\n"}),
    "noise at the dot": ("BDD?", {"rcpt": (NOBODY, OK), "eod": b"rubbish\r\n"}),
    # After two replies to MAIL every command gets the reply to the one before it: the refusal of the second
    # recipient answers the third, or DATA.  What EHLO is answered by then goes to QUIT.
    "shifted to the third": ("DDD", {"rcpt": (OK, OK, NOBODY), "data": OK, "quit": OK}),
    "shifted to DATA": ("DDD", {"data": NOBODY, "ehlo": (DEFAULT, "354 go ahead"), "quit": OK}),
    "shifted to EHLO, by a reply of one line": ("DDD", {"data": NOBODY, "ehlo": (DEFAULT, OK), "quit": OK}),
    "not the EHLO of before": ("DDD", {"data": NOBODY, "ehlo": (DEFAULT, b"250-b\r\n250 c\r\n"), "quit": OK}),
    "shifted to EHLO": ("DDD", {"rcpt": (OK, NOBODY, NOBODY), "data": NOBODY,
                                "ehlo": (DEFAULT, "503 5.5.1 DATA?"), "quit": OK}),
}  # fmt: skip
"""What becomes of each recipient, as a letter of `BY_LETTER` and with `?` where nobody knows, by what the
upstream says; a tuple is one turn after the other."""


@pytest.mark.parametrize(("becomes", "says"), list(ROWS.values()), ids=list(ROWS))
async def test_what_becomes_of_the_message(becomes: str, says: dict[str, Any]) -> None:
    script = Script()
    for phase, turn in says.items():
        setattr(script, phase, turns(*turn) if isinstance(turn, tuple) else turn)
    async with Smarthost(script) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)

        told = [(answer.verdict, answer.is_unproven) for answer in outcome.answers]
        assert told == [(BY_LETTER[letter], letter == "U") for letter in becomes.rstrip("?")]
        assert outcome.is_ambiguous == becomes.endswith("?")


ON_A_KEPT_CONNECTION: dict[str, tuple[Verdict, Turn]] = {
    "close": (LATER, CLOSE),
    "reset": (LATER, RESET),
    "half": (LATER, [b"25", CLOSE]),
    "what it says as it closes": (LATER, ["554 5.4.7 idle for too long", CLOSE]),
    "421": (PAUSE, "421 4.7.0 too many messages"),
}


@pytest.mark.parametrize(("expected", "turn"), ON_A_KEPT_CONNECTION.values(), ids=ON_A_KEPT_CONNECTION)
async def test_a_kept_connection_that_ends_at_mail_is_no_attempt(expected: Verdict, turn: Turn) -> None:
    async with Smarthost() as host, connected(account(host)) as connection:
        await connection.transact(transaction())
        host.script = Script(mail=turn)

        assert verdicts(await attempt(connection, host)) == [expected] * 3
        assert not connection.is_usable


@pytest.mark.parametrize("phase", IN_TRANSACTION)
async def test_an_upstream_that_hangs_is_left_in_time(phase: str) -> None:
    timeouts = replace(Timeouts(), **{f"{phase}_s": SOON_S})
    async with Smarthost(at(phase, SILENCE)) as host, connected(account(host), timeouts) as connection:
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == [DEFER] * 3
        assert outcome.is_ambiguous == (phase == "eod")
        assert "within" in outcome.answers[0].text
        assert not connection.is_usable


@table({"500": "500 what?", "close": CLOSE, "silence": SILENCE, "rubbish": b"rubbish\r\n", "421": "421 bye"})
async def test_trouble_with_rset_ends_the_connection_only(turn: Turn) -> None:
    script = Script(rcpt=BUSY, rset=turn)
    async with Smarthost(script) as host, connected(account(host), Timeouts(reset_s=SOON_S)) as connection:
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == [DEFER] * 3
        assert {answer.text for answer in outcome.answers} == {BUSY}
        assert not connection.is_usable


async def test_a_refusal_whose_proof_never_comes_is_no_refusal() -> None:
    script = Script(data=NOBODY, ehlo=turns(DEFAULT, SILENCE))
    async with Smarthost(script) as host, connected(account(host), Timeouts(reset_s=SOON_S)) as connection:
        outcome = await attempt(connection, host)

        assert [(answer.verdict, answer.is_unproven) for answer in outcome.answers] == [(DEFER, False)] * 3


@pytest.mark.parametrize(
    "octets",
    [b"421 4.4.2 idle for too long\r\n", b"250 2.0.0 surprise\r\n", b"5", b"\r\n", b"rubbish", None],
    ids=["421", "250", "half", "line end", "rubbish", "closed"],
)
async def test_what_comes_unasked_before_mail_is_no_attempt(octets: bytes | None) -> None:
    async with Smarthost() as host, connected(account(host)) as kept, connected(account(host)) as fresh:
        await kept.transact(transaction())
        assert kept.is_usable
        assert fresh.is_usable
        if octets is None:
            host.hang_up()
        else:
            host.say(octets)
        for connection, expected in ((kept, LATER), (fresh, PAUSE)):
            await gone_or_spoken(connection)
            assert verdicts(await connection.transact(transaction())) == [expected] * 3

        assert len(host.transactions) == 1
        assert sum(command.startswith("MAIL") for command in host.commands) == 1


@pytest.mark.asyncio(loop_factories=["asyncio"])
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


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("phase", ["connect", "ehlo", "auth"])
async def test_an_upstream_that_hangs_before_mail_is_left_in_time(phase: str) -> None:
    name = {"connect": "greeting_s", "ehlo": "hello_s", "auth": "auth_s"}[phase]
    async with Smarthost(at(phase, SILENCE), accounts={"u": "p"}, mechanisms=["PLAIN"]) as host:
        with pytest.raises(UpstreamUnavailable, match="within") as caught:
            await open_connection(
                account(host, user="u", password="p"), SystemClock(), replace(Timeouts(), **{name: SOON_S})
            )

        assert (caught.value.answer.verdict, caught.value.answer.phase) == (PAUSE, Phase(phase))
