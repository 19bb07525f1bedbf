"""Verdicts: what a reply means, row by row, and the laws that no row may break."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.reply import Phase, Reply
from relay.verdict import RULES, Verdict, verdict_of, verdict_of_silence

BEFORE_MAIL = (Phase.CONNECT, Phase.EHLO, Phase.STARTTLS, Phase.AUTH)
TRANSACTION = (Phase.MAIL, Phase.RCPT, Phase.DATA, Phase.EOD)
ENHANCED = st.none() | st.builds(
    "{}.{}.{}".format, st.sampled_from("245"), st.integers(0, 9), st.integers(0, 99)
)


def reply_of(text: str) -> Reply:
    code, _, rest = text.partition(" ")
    first = rest.partition(" ")[0]
    enhanced = first if first.count(".") == 2 and first[0] == code[0] else None
    return Reply(int(code), enhanced, rest, (rest,))


@pytest.mark.parametrize(
    ("phase", "text", "expected"),
    [
        (Phase.EOD, "250 2.0.0 taken", Verdict.RELAYED),
        (Phase.EOD, "250 ok", Verdict.RELAYED),
        # Nothing before MAIL is a message's fault.
        (Phase.CONNECT, "554 5.7.1 you are listed", Verdict.PAUSE),
        (Phase.CONNECT, "554 DED : You've reached your daily relay quota", Verdict.PAUSE),
        (Phase.CONNECT, "550 5.7.1 Mail relay denied", Verdict.PAUSE),
        (Phase.CONNECT, "421 4.7.0 Try again later, closing connection", Verdict.PAUSE),
        (Phase.EHLO, "550 5.7.1 no", Verdict.PAUSE),
        (Phase.STARTTLS, "454 4.7.0 TLS not available", Verdict.PAUSE),
        # A password and a quota share codes at AUTH: both mean stop.
        (Phase.AUTH, "535 5.7.8 Authentication Credentials Invalid", Verdict.PAUSE),
        (Phase.AUTH, "534 5.7.14 log in by your browser", Verdict.PAUSE),
        (Phase.AUTH, "550 5.7.30 Basic authentication is not supported", Verdict.PAUSE),
        (Phase.AUTH, "550 Too many messages. Try again in 92 seconds.", Verdict.PAUSE),
        (Phase.AUTH, "451 Authentication failed: Maximum credits exceeded", Verdict.PAUSE),
        (Phase.AUTH, "454 4.7.0 Too many login attempts, please try again later", Verdict.PAUSE),
        (Phase.AUTH, "432 4.3.2 Concurrent connections limit exceeded", Verdict.PAUSE),
        # Nor is authentication, whenever it is asked for.
        (Phase.MAIL, "530 5.7.0 Authentication required", Verdict.PAUSE),
        (Phase.RCPT, "530 5.7.0 Must issue a STARTTLS command first", Verdict.PAUSE),
        (Phase.EOD, "535 5.7.8 token expired", Verdict.PAUSE),
        (Phase.MAIL, "550 5.7.1 Outbound Mail Refused", Verdict.PAUSE),
        # 421 at any time.
        (Phase.MAIL, "421 4.7.28 unusual rate of unsolicited mail", Verdict.PAUSE),
        (Phase.RCPT, "421 4.3.2 closing", Verdict.PAUSE),
        (Phase.DATA, "421 4.4.5 Server busy", Verdict.PAUSE),
        (Phase.EOD, "421 4.7.0 try again", Verdict.PAUSE),
        # X.4.5 whatever the class says.
        (Phase.MAIL, "550 5.4.5 Daily user sending limit exceeded", Verdict.PAUSE),
        (Phase.EOD, "550 5.4.5 Daily SMTP relay limit exceeded for user", Verdict.PAUSE),
        (Phase.RCPT, "450 4.4.5 Messages per second limit exceeded", Verdict.PAUSE),
        (Phase.MAIL, "452 4.4.5 Messages per second limit exceeded", Verdict.PAUSE),
        # Too many recipients for one transaction; 452 for another reason is not that.
        (Phase.RCPT, "452 4.5.3 too many recipients", Verdict.LATER),
        (Phase.RCPT, "452 too many recipients", Verdict.LATER),
        (Phase.RCPT, "552 5.5.3 too many recipients", Verdict.LATER),
        (Phase.RCPT, "452 4.2.2 The email account that you tried to reach is over quota", Verdict.DEFER),
        (Phase.RCPT, "452 4.3.1 Insufficient system storage", Verdict.DEFER),
        (Phase.MAIL, "452 4.3.1 Insufficient system storage", Verdict.DEFER),
        (Phase.EOD, "452 4.3.1 Insufficient system storage", Verdict.DEFER),
        # A recipient, now or for good.
        (Phase.RCPT, "450 4.2.1 user is receiving mail too quickly", Verdict.DEFER),
        (Phase.RCPT, "451 4.7.1 greylisted", Verdict.DEFER),
        (Phase.RCPT, "550 5.1.1 user unknown", Verdict.BOUNCE),
        (Phase.RCPT, "550 5.1.2 bad domain", Verdict.BOUNCE),
        (Phase.RCPT, "550 5.1.6 moved", Verdict.BOUNCE),
        (Phase.RCPT, "550 5.2.1 disabled", Verdict.BOUNCE),
        (Phase.RCPT, "552 5.2.2 mailbox full", Verdict.BOUNCE),
        (Phase.RCPT, "550 5.7.1 this recipient is not for you", Verdict.BOUNCE),
        (Phase.RCPT, "553 no such mailbox", Verdict.BOUNCE),
        # The message.
        (Phase.MAIL, "552 5.3.4 message size exceeds limit", Verdict.BOUNCE),
        (Phase.MAIL, "553 5.1.8 sender address rejected", Verdict.BOUNCE),
        (Phase.DATA, "554 5.5.1 no valid recipients", Verdict.BOUNCE),
        (Phase.EOD, "552 5.3.4 message too large", Verdict.BOUNCE),
        (Phase.EOD, "554 5.6.0 content refused", Verdict.BOUNCE),
        (Phase.EOD, "550 5.7.1 spam", Verdict.BOUNCE),
        (Phase.EOD, "451 4.3.0 try again", Verdict.DEFER),
        # Neither yes nor no.
        (Phase.EOD, "251 forwarded", Verdict.DEFER),
        (Phase.EOD, "200 fine", Verdict.DEFER),
        (Phase.EOD, "354 go on", Verdict.DEFER),
        (Phase.MAIL, "354 go on", Verdict.DEFER),
        (Phase.DATA, "250 ok", Verdict.DEFER),
    ],
)  # fmt: skip
def test_verdict(phase: Phase, text: str, expected: Verdict) -> None:
    assert verdict_of(phase, reply_of(text)) is expected


@given(st.sampled_from(BEFORE_MAIL), st.integers(400, 599), ENHANCED)
def test_no_refusal_before_mail_touches_a_message(phase: Phase, code: int, enhanced: str | None) -> None:
    assert verdict_of(phase, Reply(code, enhanced, "")) is Verdict.PAUSE


@given(st.sampled_from(Phase), st.integers(200, 599), ENHANCED)
def test_only_a_permanent_refusal_of_a_transaction_bounces(
    phase: Phase, code: int, enhanced: str | None
) -> None:
    if verdict_of(phase, Reply(code, enhanced, "")) is Verdict.BOUNCE:
        assert 500 <= code <= 599
        assert phase in TRANSACTION


@given(st.sampled_from(Phase), st.integers(200, 599), ENHANCED)
def test_only_250_to_the_final_dot_relays(phase: Phase, code: int, enhanced: str | None) -> None:
    is_relayed = verdict_of(phase, Reply(code, enhanced, "")) is Verdict.RELAYED

    assert is_relayed == (phase is Phase.EOD and code == 250)


@given(st.sampled_from(Phase), st.integers(200, 599), ENHANCED)
def test_only_too_many_recipients_puts_one_off_without_an_attempt(
    phase: Phase, code: int, enhanced: str | None
) -> None:
    if verdict_of(phase, Reply(code, enhanced, "")) is Verdict.LATER:
        assert phase is Phase.RCPT
        assert code in {452, 552}


def test_silence_pauses_before_mail_and_defers_from_then_on() -> None:
    assert {phase: verdict_of_silence(phase) for phase in (*BEFORE_MAIL, *TRANSACTION)} == dict.fromkeys(
        BEFORE_MAIL, Verdict.PAUSE
    ) | dict.fromkeys(TRANSACTION, Verdict.DEFER)


def test_every_row_names_its_source() -> None:
    assert all(rule.source for rule in RULES)


@pytest.mark.parametrize(
    ("phase", "line"),
    [
        (Phase.EOD, "454 Throttling failure: Maximum sending rate exceeded"),
        (Phase.EOD, "454 Throttling failure: Daily message quota exceeded"),
        (Phase.EOD, "550 5.7.1 Daily SMTP relay limit exceeded for customer"),
        (Phase.EOD, "550 5.7.1 You have exceeded your daily sending limit"),
        (Phase.RCPT, "550 Policy Rejection- Sender Hourly Mail Quota Exceeded"),
        (Phase.RCPT, "550 Domain X has exceeded the max emails per hour (125/100 (125%)) allowed."),
        (Phase.RCPT, "452 Too many recipients received this hour, only relaying 400 msg/hour!"),
        (Phase.EOD, "550 This IP has sent too many messages this hour. IB504"),
        (Phase.EOD, "550 - Stop, you are sending too fast!"),
        (Phase.EOD, "450 Requested mail action not taken: Mail send limit exceeded rate limit"),
        (Phase.EOD, "550 5.7.1 You have exceeded your sending limit of 10 messages in 5 s"),
    ],
)
def test_a_refusal_about_our_rate_is_never_the_messages_fault(phase: Phase, line: str) -> None:
    assert verdict_of(phase, reply_of(line)) is Verdict.PAUSE


@pytest.mark.parametrize(
    ("phase", "line"),
    [
        (Phase.RCPT, "550 5.1.1 no such user here"),
        (Phase.RCPT, "552 5.2.2 mailbox full, over quota"),
        (Phase.RCPT, "550 5.2.2 the user you sent to has exceeded its mail quota limit"),
        (Phase.EOD, "552 5.3.4 message size exceeded the maximum limit"),
        (Phase.EOD, "552 you have exceeded the maximum message size limit per day"),
        (Phase.EOD, "554 5.6.0 spam"),
    ],
)
def test_a_failure_of_the_recipient_or_the_message_still_bounces(phase: Phase, line: str) -> None:
    assert verdict_of(phase, reply_of(line)) is Verdict.BOUNCE
