"""A table of what upstreams do in a transaction, and what becomes of the message.

A recipient is relayed exactly if a well-formed 250 answers the final dot.  It bounces only by a well-formed
5yz to its own command.  If the dot is sent and no well-formed reply comes, the outcome is unknown.
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
BY_LETTER = {"R": RELAYED, "D": DEFER, "U": DEFER, "L": LATER, "B": BOUNCE, "P": PAUSE, "S": Verdict.STOP}
IN_TRANSACTION = ["mail", "rcpt", "data", "eod"]
NOBODY, BUSY, OK, TOO_BIG = "550 5.1.1 who?", "450 4.2.1 busy", "250 2.1.5 ok", "552 5.3.4 too big"
GBK = "用户不存在".encode("gbk")
ENDS: dict[str, Turn] = {"close": CLOSE, "reset": RESET, "421": "421 4.3.2 closing"}
REFUSALS: dict[str, tuple[str, Turn]] = {
    "4yz": ("DDD", "451 4.3.0 later"),
    "4yz bare": ("DDD", "451"),
    "5yz": ("BBB", "554 5.6.0 no"),
    "5yz octet by octet": ("BBB", Drip(b"554 5.6.0 no\r\n")),
    "5yz with a code that contradicts": ("BBB", "550 4.2.1 no"),
    "530": ("SSS", "530 5.7.0 log in first"),
    "X.4.5": ("PPP", "550 5.4.5 daily limit"),
    "421": ("PPP", "421 4.3.2 closing"),
    "421, then gone": ("PPP", ["421 4.3.2 closing", CLOSE]),
}
NO_REPLY: dict[str, Turn] = {  # tests/unit/smtp/test_reply has all malformed replies
    "nothing, closed": CLOSE,
    "nothing, reset": RESET,
    "nothing, half closed": HALF_CLOSE,
    "25, closed": [b"25", CLOSE],
    "250 x CR, closed": [b"250 x\r", CLOSE],
    "550-x, closed": [b"550-5.1.1 no\r\n", CLOSE],
    "550 without its end, reset": [b"550 5.1.1 no", RESET],
    "no space": b"250ok\r\n",
    "LF and a code inside": b"550 5.1.1 no\n250 ok\r\n",
    "two replies at once": [DEFAULT, DEFAULT],
    "refused and accepted at once": b"554 5.6.0 no\r\n250 2.0.0 ok\r\n",
    "a reply and half of one": [DEFAULT, b"25"],
    "a reply without end": b"554-5.6.0 and so on\r\n" * 5000,
    "235": "235 2.7.0 logged in",
    "299": "299 what?",
}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{name} to {phase}": (becomes, {phase: turn})
       for name, (becomes, turn) in REFUSALS.items() for phase in IN_TRANSACTION},
    **{f"{name} to {phase}": ("DDD?" if phase == "eod" else "DDD", {phase: turn})
       for name, turn in NO_REPLY.items() for phase in IN_TRANSACTION},
    "each is settled by its own reply": ("DRB", {"rcpt": (BUSY, OK, NOBODY)}),
    "251 is accepted": ("RRR", {"rcpt": "251 forwarded"}),
    # Recipients above a limit go later.  If even the first is, all are deferred: it would go later for ever.
    "too many": ("RLL", {"rcpt": (OK, "452 4.5.3 too many", "452 4.5.3 too many")}),
    "too many for good": ("RLL", {"rcpt": (OK, "552 5.5.3 too many", "552 5.5.3 too many")}),
    "too many already": ("DDD", {"rcpt": "452 too many"}),
    "354 to MAIL": ("DDD", {"mail": "354 go"}),
    "251 to MAIL": ("DDD", {"mail": "251 ok"}),
    "354 to RCPT": ("DDD", {"rcpt": "354 go"}),
    "250 to DATA": ("DDD", {"data": "250 ok"}),
    "251 to the dot": ("DDD?", {"eod": "251 ok"}),
    "354 to the dot": ("DDD?", {"eod": "354 go"}),
    # A well-formed 250 relays, whatever follows.
    "250, then 421": ("RRR", {"eod": b"250 2.0.0 ok\r\n421 4.7.0 enough of you\r\n"}),
    "250, then close": ("RRR", {"eod": [b"250 2.0.0 ok\r\n", CLOSE]}),
    "250, then rubbish": ("RRR", {"eod": b"250 2.0.0 ok\r\nrubbish\r\n"}),
    "250 drip": ("RRR", {"eod": Drip(b"250-2.0.0 ok\r\n250\r\n")}),
    "421 to the dot, then 250": ("DDD?", {"eod": b"421 4.3.2 closing\r\n250 2.0.0 taken\r\n"}),
    "421 to the dot, then half": ("DDD?", {"eod": b"421 4.3.2 closing\r\n2"}),
    # A 421 behind a reply answers the next command.
    "MAIL, then 421": ("PPP", {"mail": [DEFAULT, b"421 4.3.2 going down\r\n"]}),
    "RCPT, then 421": ("PPP", {"rcpt": [DEFAULT, b"421 4.3.2 going down\r\n"]}),
    "DATA, then 421": ("PPP", {"data": [DEFAULT, b"421 4.3.2 going down\r\n"]}),
    # Odd replies that relay.
    "greeting of many lines": ("RRR", {"connect": b"220-fake.example\r\n220-no spam\r\n220 ready\r\n"}),
    "greeting without a text": ("RRR", {"connect": b"220\r\n"}),
    "greeting in GBK": ("RRR", {"connect": b"220 " + GBK + b"\r\n"}),
    "EHLO of the name alone": ("RRR", {"ehlo": b"250 fake.example\r\n"}),
    "EHLO without a text": ("RRR", {"ehlo": b"250\r\n"}),
    "EHLO of 200 words": ("RRR", {
        "ehlo": b"".join(b"250-X%d a=b =\r\n" % n for n in range(200)) + b"250 8BITMIME\r\n"}),
    "EHLO with words that are none": ("RRR", {
        "ehlo": b"250-fake.example\r\n250-\r\n250-AUTH\r\n250-AUTH=\r\n250-SIZE\r\n250-SIZE=1\r\n"
        b"250-SIZE 0\r\n250-LIMITS\r\n250-250 DSN\r\n250-" + GBK + b"\r\n250 8bitmime\r\n"}),
    "codes alone": ("RRR", {"mail": b"250\r\n", "rcpt": b"250\r\n", "data": b"354\r\n", "eod": b"250\r\n"}),
    "codes and a blank": ("RRR", {
        "mail": b"250 \r\n", "rcpt": b"250 \r\n", "data": b"354 \r\n", "eod": b"250 \r\n"}),
    "354 of many lines": ("RRR", {"data": b"354-2.0.0 go\r\n354-on\r\n354 .\r\n"}),
    "250 of many lines": ("RRR", {"eod": b"250-2.0.0 ok\r\n250-id=1\r\n250 " + GBK + b"\r\n"}),
    "250 that speaks of a refusal": ("RRR", {"eod": "250 5.7.1 rejected: 550 quota exceeded"}),
    # No later reply proves that the last refusal answered its own command: U (unproven).
    "MAIL refused, then close": ("UUU", {"mail": ["554 5.6.0 no", CLOSE]}),
    "RCPT refused, then close": ("UDD", {"rcpt": ["554 5.6.0 no", CLOSE]}),
    "DATA refused, then close": ("UUU", {"data": ["554 5.6.0 no", CLOSE]}),
    "dot refused, then close": ("UUU", {"eod": ["554 5.6.0 no", CLOSE]}),
    "MAIL refused, then 421": ("UUU", {"mail": b"554 5.6.0 no\r\n421 4.7.0 go away\r\n"}),
    "RCPT refused, then 421": ("UPP", {"rcpt": b"554 5.6.0 no\r\n421 4.7.0 go away\r\n"}),
    "dot refused, then 421": ("UUU", {"eod": b"554 5.6.0 no\r\n421 4.7.0 go away\r\n"}),
    # 354 proves the refusal of a recipient before it; content goes only if a recipient is accepted.
    **{f"{end} at RCPT": ("UPP" if end == "421" else "UDD", {"rcpt": (NOBODY, OK, turn)})
       for end, turn in ENDS.items()},
    **{f"{end} at DATA": ("UPP" if end == "421" else "UDD", {"rcpt": (NOBODY, OK), "data": turn})
       for end, turn in ENDS.items()},
    **{f"{end} at the dot": ("BPP" if end == "421" else "BDD?", {"rcpt": (NOBODY, OK), "eod": turn})
       for end, turn in ENDS.items()},
    "noise at RCPT": ("DDD", {"rcpt": (NOBODY, OK, b"rubbish\r\n")}),
    "noise at DATA": ("DDD", {"rcpt": (NOBODY, OK), "data": b"rubbish\r\n"}),
    "noise at the dot": ("BDD?", {"rcpt": (NOBODY, OK), "eod": b"rubbish\r\n"}),
    "content asked for nobody": ("BBB", {"rcpt": NOBODY, "data": "354 go ahead"}),
    # Later replies contradict the refusal.
    "MAIL refused, RCPT accepted": ("DDD", {"mail": TOO_BIG, "rcpt": OK}),
    "MAIL refused, 354": ("DDD", {"mail": TOO_BIG, "data": "354 go ahead"}),
    "RCPT refused, DATA accepted": ("DDD", {"rcpt": NOBODY, "data": OK}),
    "RCPT out of order": ("DDD", {"rcpt": "503 5.5.1 MAIL first"}),
    # After two replies to MAIL every command gets the reply to the one before it: the refusal of the second
    # recipient answers the third, or DATA.  The reply to EHLO then answers QUIT.
    "shifted to the third": ("DDD", {"rcpt": (OK, OK, NOBODY), "data": OK, "quit": OK}),
    "shifted to DATA": ("DDD", {"data": NOBODY, "ehlo": (DEFAULT, "354 go ahead"), "quit": OK}),
    "shifted to EHLO, by a reply of one line": ("DDD", {"data": NOBODY, "ehlo": (DEFAULT, OK), "quit": OK}),
    "not the EHLO of before": ("DDD", {"data": NOBODY, "ehlo": (DEFAULT, b"250-b\r\n250 c\r\n"), "quit": OK}),
    "shifted to EHLO": ("DDD", {"rcpt": (OK, NOBODY, NOBODY), "data": NOBODY,
                                "ehlo": (DEFAULT, "503 5.5.1 DATA?"), "quit": OK}),
}  # fmt: skip
"""For each row: the letter in `BY_LETTER` of each recipient, `?` for an unknown outcome; and what the
upstream says, where a tuple is one turn after the other."""


def table(of: dict[str, Turn]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("turn", list(of.values()), ids=list(of))


async def attempt(connection: Connection, host: Smarthost) -> Outcome:
    """Run a transaction, and check the laws that hold for every outcome."""
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
        assert not connection.is_usable
    return outcome


@pytest.mark.parametrize(("becomes", "says"), list(ROWS.values()), ids=list(ROWS))
async def test_each_row_of_the_table_has_its_outcome(becomes: str, says: dict[str, Any]) -> None:
    script = Script()
    for phase, turn in says.items():
        setattr(script, phase, turns(*turn) if isinstance(turn, tuple) else turn)
    async with Smarthost(script) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)

        told = [(answer.verdict, answer.is_unproven) for answer in outcome.answers]
        assert told == [(BY_LETTER[letter], letter == "U") for letter in becomes.rstrip("?")]
        assert outcome.is_ambiguous == becomes.endswith("?")
        assert not connection.is_usable or all(answer.reply is not None for answer in outcome.answers)


@pytest.mark.parametrize("phase", IN_TRANSACTION)
async def test_the_connection_is_usable_after_a_refusal(phase: str) -> None:
    for refusal in (BUSY, NOBODY):
        async with Smarthost(at(phase, refusal)) as host, connected(account(host)) as connection:
            outcome = await attempt(connection, host)

            assert {(answer.phase, answer.text) for answer in outcome.answers} == {(Phase(phase), refusal)}
            host.script = Script()
            assert verdicts(await attempt(connection, host)) == [RELAYED] * 3


ON_A_KEPT_CONNECTION: dict[str, tuple[Verdict, Turn]] = {
    "close": (LATER, CLOSE),
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


@table({"500": "500 what?", "close": CLOSE, "silence": SILENCE})
async def test_a_failed_rset_ends_only_the_connection(turn: Turn) -> None:
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
    [b"421 4.4.2 idle for too long\r\n", b"250 2.0.0 surprise\r\n", b"5", None],
    ids=["421", "250", "half", "closed"],
)
async def test_an_unsolicited_reply_before_mail_is_no_attempt(octets: bytes | None) -> None:
    async with Smarthost() as host, connected(account(host)) as kept, connected(account(host)) as fresh:
        await kept.transact(transaction())
        assert kept.is_usable
        assert fresh.is_usable
        if octets is None:
            host.hang_up()
        else:
            host.say(octets)
        for connection, expected in ((kept, LATER), (fresh, PAUSE)):
            async with asyncio.timeout(PATIENCE_S):
                while connection.is_usable:  # noqa: ASYNC110 - what is waited for is what the loop reads
                    await asyncio.sleep(0)
            assert verdicts(await connection.transact(transaction())) == [expected] * 3

        assert len(host.transactions) == 1
        assert sum(command.startswith("MAIL") for command in host.commands) == 1


@pytest.mark.parametrize("phase", ["connect", "ehlo", "auth", "challenge"])
@table(
    {
        "closed": CLOSE,
        "half closed": HALF_CLOSE,
        "half, reset": [b"25", RESET],
        "no space": b"250ok\r\n",
        "a reply and half of one": [DEFAULT, b"25"],
        "no meaning": "299 what?",
        "4yz": "451 4.3.0 later",
        "5yz": "554 5.6.0 no",
        "421": "421 4.3.2 closing",
    }
)
async def test_a_failure_before_mail_blames_no_message(phase: str, turn: Turn) -> None:
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


@pytest.mark.parametrize(("phase", "step"), [("connect", "greeting"), ("ehlo", "hello"), ("auth", "auth")])
async def test_an_upstream_that_hangs_before_mail_times_out(phase: str, step: str) -> None:
    timeouts = replace(Timeouts(), **{f"{step}_s": SOON_S})
    async with Smarthost(at(phase, SILENCE), accounts={"u": "p"}, mechanisms=["PLAIN"]) as host:
        with pytest.raises(UpstreamUnavailable, match="within") as caught:
            await open_connection(account(host, user="u", password="p"), SystemClock(), timeouts)

        assert (caught.value.answer.verdict, caught.value.answer.phase) == (PAUSE, Phase(phase))
