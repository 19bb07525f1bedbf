"""Verdicts: what a reply means, the laws that no rule may break, and the status of an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.policy.shipped import provider_rules, providers, standard_judge, standard_rules
from relay.smtp.reply import Phase, Reply
from relay.verdicts.echo import ClientWords
from relay.verdicts.outcome import Answer, gravest
from relay.verdicts.verdict import (
    ABOUT_US,
    BEFORE_MAIL,
    WORDS,
    Judge,
    Layer,
    Rule,
    Ruling,
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


def reply_of(text: str) -> Reply:
    code, _, rest = text.partition(" ")
    first = rest.partition(" ")[0]
    enhanced = first if first.count(".") == 2 and first[0] == code[0] else None
    return Reply(int(code), enhanced, rest, (rest,))


@pytest.mark.parametrize(
    ("phase", "text", "expected"),
    [
        # Nothing before MAIL is a message's fault, nor is authentication, whenever it is asked for.
        (Phase.CONNECT, "554 5.7.1 you are listed", Verdict.PAUSE),
        (Phase.STARTTLS, "454 4.7.0 TLS not available", Verdict.PAUSE),
        (Phase.EOD, "535 5.7.8 token expired", Verdict.STOP),
        # Too many recipients for one transaction; 452 for another reason is not that.
        (Phase.RCPT, "552 5.5.3 too many recipients", Verdict.LATER),
        (Phase.RCPT, "452 4.3.1 Insufficient system storage", Verdict.DEFER),
        # What nobody knows, by its first digit.
        (Phase.RCPT, "550 5.7.1 this recipient is not for you", Verdict.BOUNCE),
        (Phase.EOD, "451 4.3.0 try again", Verdict.DEFER),
        # Neither yes nor no.
        *((Phase.EOD, text, Verdict.DEFER) for text in ("251 forwarded", "354 go on")),
        *((Phase.MAIL, "354 go on", Verdict.DEFER), (Phase.DATA, "250 ok", Verdict.DEFER)),
    ],
)
def test_verdict(phase: Phase, text: str, expected: Verdict) -> None:
    assert standard_judge().ruling(phase, reply_of(text)).verdict is expected


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


def answer(verdict: Verdict, phase: Phase, reply: str | None, own_status: str | None = None) -> Answer:
    return Answer(verdict, phase, None if reply is None else reply_of(reply), "", own_status)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (answer(Verdict.BOUNCE, Phase.RCPT, "550 5.1.1 who?"), "5.1.1"),
        (answer(Verdict.BOUNCE, Phase.RCPT, "550 who?"), "5.0.0"),
        (answer(Verdict.BOUNCE, Phase.MAIL, None, "5.6.3"), "5.6.3"),
        (answer(Verdict.RELAYED, Phase.EOD, "250 ok"), "2.0.0"),
        (answer(Verdict.RELAYED, Phase.EOD, "250 2.6.0 ok"), "2.6.0"),
        (answer(Verdict.DEFER, Phase.EOD, None), "4.4.2"),
        (answer(Verdict.PAUSE, Phase.MAIL, "421 bye"), "4.0.0"),
        # Its class is the verdict's, but where it is about us: of that no report is made.
        (answer(Verdict.DEFER, Phase.RCPT, "550 5.2.1 at a rate"), "4.2.1"),
        (answer(Verdict.BOUNCE, Phase.RCPT, "450 4.1.1 by your own rule"), "5.1.1"),
        (answer(Verdict.STOP, Phase.AUTH, "535 5.7.8 wrong"), "5.7.8"),
    ],
)
def test_status_is_the_upstreams_or_follows_from_the_verdict(told: Answer, expected: str) -> None:
    assert told.status == expected


def test_the_gravest_of_many_answers_is_the_one_that_reaches_furthest() -> None:
    said = {
        words: Answer(verdict, Phase.RCPT, None, words, ruling=Ruling(verdict, scope))
        for words, (verdict, scope) in WORDS.items()
    }

    assert gravest(said.values()) == said["stop"]
    assert gravest([said["pause sender"], said["bounce message"], said["pause"]]) == said["pause"]
    assert gravest([said["later"], said["pause sender"]]) == said["pause sender"]
    assert gravest([said["bounce recipient"], said["defer message"]]) is None
