"""Verdicts: what a reply means, and the laws that no rule may break."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.policy.shipped import provider_rules, providers, standard_judge, standard_rules
from relay.smtp.reply import Phase, Reply
from relay.verdicts.echo import ClientWords
from relay.verdicts.verdict import (
    ABOUT_US,
    BEFORE_MAIL,
    WORDS,
    Judge,
    Layer,
    Rule,
    Scope,
    Verdict,
    verdict_of_silence,
)
from relay.verdicts.wording import Phrases

TRANSACTION = (Phase.MAIL, Phase.RCPT, Phase.DATA, Phase.EOD)
TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40) | st.sampled_from(
    [
        phrase
        for provider in providers().values()
        for rule in provider.verdicts
        for phrase in rule.get("text", ())
    ]
)
ANY_JUDGE = st.sampled_from([None, *providers()]).map(
    lambda name: Judge((*provider_rules(name), *standard_rules()))
)


def verdict_of(phase: Phase, reply: Reply) -> Verdict:
    return standard_judge().ruling(phase, reply).verdict


def reply_of(text: str) -> Reply:
    code, _, rest = text.partition(" ")
    first = rest.partition(" ")[0]
    enhanced = first if first.count(".") == 2 and first[0] == code[0] else None
    return Reply(int(code), enhanced, rest, (rest,))


@pytest.mark.parametrize(
    ("phase", "text", "expected"),
    [
        (Phase.EOD, "250 ok", Verdict.RELAYED),
        # Nothing before MAIL is a message's fault.
        (Phase.CONNECT, "554 5.7.1 you are listed", Verdict.PAUSE),
        (Phase.EHLO, "550 5.7.1 no", Verdict.PAUSE),
        (Phase.STARTTLS, "454 4.7.0 TLS not available", Verdict.PAUSE),
        # Nor is authentication, whenever it is asked for.
        (Phase.RCPT, "530 5.7.0 Must issue a STARTTLS command first", Verdict.STOP),
        (Phase.EOD, "535 5.7.8 token expired", Verdict.STOP),
        # Too many recipients for one transaction; 452 for another reason is not that.
        (Phase.RCPT, "552 5.5.3 too many recipients", Verdict.LATER),
        (Phase.RCPT, "452 4.3.1 Insufficient system storage", Verdict.DEFER),
        # What nobody knows, by its first digit.
        (Phase.RCPT, "550 5.7.1 this recipient is not for you", Verdict.BOUNCE),
        (Phase.DATA, "554 5.5.1 no valid recipients", Verdict.BOUNCE),
        (Phase.EOD, "451 4.3.0 try again", Verdict.DEFER),
        # Neither yes nor no.
        (Phase.EOD, "251 forwarded", Verdict.DEFER),
        (Phase.EOD, "354 go on", Verdict.DEFER),
        (Phase.MAIL, "354 go on", Verdict.DEFER),
        (Phase.DATA, "250 ok", Verdict.DEFER),
    ],
)
def test_verdict(phase: Phase, text: str, expected: Verdict) -> None:
    assert verdict_of(phase, reply_of(text)) is expected


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    code = draw(st.integers(200, 599))
    # Of another class than the code the reader of replies takes none (RFC 2034, 4).
    enhanced = st.builds(f"{code // 100}.{{}}.{{}}".format, st.integers(0, 9), st.integers(0, 99))
    return Reply(code, draw(st.none() | enhanced), draw(TEXTS))


@given(ANY_JUDGE, st.sampled_from(Phase), replies())
def test_every_reply_has_a_verdict_only_5yz_bounces_and_nothing_before_mail(
    judge: Judge, phase: Phase, reply: Reply
) -> None:
    ruling = judge.ruling(phase, reply)

    if phase in BEFORE_MAIL:
        assert ruling.verdict in ABOUT_US
        assert ruling.scope is Scope.UPSTREAM
    if ruling.verdict is Verdict.BOUNCE:
        assert 500 <= reply.code <= 599
    if ruling.verdict is Verdict.LATER:
        assert phase is Phase.RCPT
    assert (ruling.verdict is Verdict.RELAYED) == (phase is Phase.EOD and reply.code == 250)
    assert ruling.words in {*WORDS, "relayed"}
    # The last layer knows every refusal, so that each verdict has a rule and a source.
    assert reply.code < 400 or (ruling.rule is not None and ruling.rule.source)


def test_silence_pauses_before_mail_and_defers_from_then_on() -> None:
    assert {phase: verdict_of_silence(phase) for phase in (*BEFORE_MAIL, *TRANSACTION)} == dict.fromkeys(
        BEFORE_MAIL, Verdict.PAUSE
    ) | dict.fromkeys(TRANSACTION, Verdict.DEFER)


def a_rule(layer: Layer, words: str, text: str = "no", **more: object) -> Rule:
    return Rule(layer, *WORDS[words], "here", "us", text=Phrases((text,)), **more)  # type: ignore[arg-type]  # fields by name


def test_layers_are_asked_in_order_whatever_the_order_of_rules() -> None:
    layers = [Layer.DEFAULT, Layer.WORDING, Layer.CODE, Layer.PROVIDER, Layer.OPERATOR]
    rules = [a_rule(layer, "pause") for layer in layers]

    for layer in reversed(layers):
        assert Judge(rules).ruling(Phase.MAIL, reply_of("550 no")).layer is layer
        rules = [rule for rule in rules if rule.layer is not layer]


@pytest.mark.parametrize("words", [words for words in WORDS if words not in {"pause", "stop"}])
@pytest.mark.parametrize("phase", sorted(BEFORE_MAIL))
def test_a_rule_that_would_touch_a_message_before_mail_cannot_be_made(phase: Phase, words: str) -> None:
    with pytest.raises(ValueError, match=r"before MAIL|only in phase rcpt"):
        a_rule(Layer.OPERATOR, words, phases=frozenset({phase}))


def test_a_phrase_is_found_across_the_lines_of_a_reply() -> None:
    """Each line repeats the enhanced code, in the middle of the sentence."""
    lines = (
        "4.2.1 The user you are trying to contact is receiving mail at",
        "4.2.1  a rate that prevents more",
    )
    reply = Reply(450, "4.2.1", " ".join(lines), lines)

    assert standard_judge().ruling(Phase.RCPT, reply).words == "defer recipient"


def test_an_enhanced_code_at_the_end_counts_where_none_is_in_front() -> None:
    assert standard_judge().ruling(Phase.RCPT, reply_of("550 bad address (#5.1.1)")).layer is Layer.CODE
    assert standard_judge().ruling(Phase.RCPT, reply_of("550 bad address (#4.1.1)")).layer is Layer.DEFAULT


def test_a_refusal_at_mail_that_quotes_the_sender_pauses_it_alone() -> None:
    judge, reply = standard_judge(), reply_of("550 5.7.1 <Bob@here.example>: no")

    assert judge.ruling(Phase.MAIL, reply, ClientWords("bob@here.example")).words == "pause sender"
    assert judge.ruling(Phase.MAIL, reply, ClientWords("alice@here.example")).words == "pause"
    assert judge.ruling(Phase.MAIL, reply, ClientWords()).words == "pause"
