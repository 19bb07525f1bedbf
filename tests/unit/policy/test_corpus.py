"""Every real reply gets its right verdict, from any provider and whatever client text it quotes.

A refusal of the account itself (quota, rate, login) is never a bounce or an attempt; a real failure of a
recipient or a message is.
"""

import functools
import re
import textwrap
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.policy.shipped import provider_of, provider_rules, providers, standard_rules
from relay.smtp.reply import Phase, Reply
from relay.verdicts.verdict import ABOUT_US, Judge, Layer, Ruling, Verdict
from tests.unit.policy.corpus import Case, cases, parsed


@functools.cache
def judge_of(provider: str | None) -> Judge:
    return Judge((*provider_rules(provider), *standard_rules()))


@functools.cache
def by_provider(case: Case) -> Ruling:
    judge = judge_of(provider_of(None, case.host))
    return judge.ruling(case.phase, case.reply, case.sender)


@functools.cache
def by_anybody(case: Case) -> Ruling:
    return judge_of(None).ruling(case.phase, case.reply, case.sender)


def test_every_real_reply_has_its_right_verdict() -> None:
    for case in (*cases("own"), *cases("theirs")):
        where = f"{case.place} {case.phase} {case.reply}"
        ruling, general = by_provider(case), by_anybody(case)

        assert case.source, where
        assert ruling.words in case.verdicts, where
        assert not case.is_generic or general.words in case.verdicts, where
        assert case.wait_ns in (None, ruling.wait_ns), where
        assert case.retry_after_ns in (None, ruling.retry_after_ns), where
        assert case.window_ns in (None, ruling.window_ns), where
        assert ruling.may_probe == case.probe, where
        assert case.known in (None, general.layer is not Layer.DEFAULT), where


def test_no_refusal_of_the_account_is_ever_a_bounce_whichever_provider_gives_it() -> None:
    bounced = [
        f"{case.place} {case.phase}: {case.reply}"
        for case in cases("own")
        for ruling in (by_provider(case), by_anybody(case))
        if ruling.verdict is Verdict.BOUNCE
    ]

    assert not bounced, "\n".join(bounced)


def otherwise(case: Case) -> Iterator[tuple[Phase, Reply]]:
    """Yield a refusal in the phases and with the codes in which another provider gives it."""
    layer = by_anybody(case).layer
    if by_anybody(case).verdict in ABOUT_US and layer is not Layer.DEFAULT:
        yield from ((phase, case.reply) for phase in (Phase.MAIL, Phase.RCPT, Phase.EOD))
    if layer is Layer.WORDING:
        text = case.reply.text.removeprefix(case.reply.enhanced or "").strip()
        for code in (421, 450, 451, 452, 454, 550, 552, 553, 554):
            yield case.phase, Reply(code, None, text)


def test_a_refusal_of_the_account_is_no_bounce_in_another_phase_or_with_another_code() -> None:
    theirs = {(case.phase, case.reply) for case in cases("theirs")}
    bounced = [
        f"{case.place} at {phase}: {reply}"
        for case in cases("own")
        for phase, reply in otherwise(case)
        if (phase, reply) not in theirs
        if judge_of(None).ruling(phase, reply, case.sender).verdict is Verdict.BOUNCE
    ]

    assert not bounced, "\n".join(bounced)


def found_in_rules() -> list[str]:
    every = {
        phrase
        for provider in (None, *providers())
        for rule in judge_of(provider).rules
        for phrases in (rule.text, rule.but_not)
        if phrases is not None
        for phrase in phrases.phrases
    }
    return sorted(every)


# Words that mean a rule, a wait, a window or a code, and characters that are hard to quote or fold.
SAID = st.deferred(lambda: st.sampled_from(found_in_rules())) | st.sampled_from(
    [
        *"<>()[]{}.,;:@#'\"\\? -=+%&", "...", "5.7.13", "#5.7.13", "(#5.4.5)", "5.4.5", "421", "per day",
        "try again in 5 hours", "daily", "24 hours", "limit of 50 recipients per 3600s", "retry-after: 120",
        "Ä", "ß€", "\u212a", "\u0130", "mailbox", "list@here.example", "your account", "subject:",
    ]
)  # fmt: skip
PHRASE = st.lists(SAID, min_size=1, max_size=4).map(" ".join)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def cut_to(octets: int, text: str) -> str:
    return text.encode()[:octets].decode("utf-8", "ignore")


LOCAL = PHRASE.map(lambda text: cut_to(40, text)).map(quoted)
LABEL = st.sampled_from(
    ["throttl", "daily-quota", "mailbox", "too-many", "relay-limit", "suspended", "x", "hourly"]
)
DOMAIN = st.lists(LABEL, min_size=1, max_size=3).map(".".join).map(lambda name: f"{name}.example")
ADDRESS = st.builds("{}@{}".format, LOCAL | LABEL, DOMAIN)


def internal(address: str) -> str:
    """Return an address in Postfix's internal form: without quotes and their backslashes."""
    local, _, domain = address.rpartition("@")
    unquoted = re.sub(r"\\(.)", r"\1", local[1:-1])
    return f"{unquoted}@{domain}" if local.startswith('"') else address


def shortened(address: str) -> str:
    """Shorten a long address like sendmail's shortenstring: leave out the middle."""
    text = f"<{address}>"
    return text if len(text) <= 40 else f"{text[:20]}...{text[-17:]}"


def domain(address: str) -> str:
    return address.rpartition("@")[2]


def xtext(text: str) -> str:
    """RFC 3461, 4."""
    return "".join(chr(o) if 33 <= o <= 126 and o not in b"+=" else f"+{o:02X}" for o in text.encode())


Shape = Callable[[str], str]
RCPT_SHAPES: list[Shape] = [
    # Postfix (smtpd_check.c: "<%s>: %s rejected: %s", the internal form); Exim; sendmail, twice; qmail;
    # Exchange; Gmail, twice; an ORCPT.
    lambda a: f"550 5.1.1 <{internal(a)}>: Recipient address rejected: User unknown",
    lambda a: f"550-Verification failed for <{a}>\r\n550 Unrouteable address",
    lambda a: f"553 5.1.8 {shortened(a)}... Domain of sender address does not exist",
    lambda a: f"550 5.1.2 <{a}>... Host unknown (Name server: {domain(a)}: not found)",
    lambda a: f"511 sorry, no mailbox here by that name: {a} (#5.1.1 - chkuser)",
    lambda a: f"550 5.4.1 [{a}]: Recipient address rejected: Access denied [{domain(a)}]",
    lambda a: f"553-5.1.2 The recipient <{a}> is not a valid\r\n553 5.1.2 RFC-5321 address. - gsmtp",
    lambda a: f"550 5.7.0 <@relay.here.example:{a}> is not for us",
    lambda a: f"550 5.7.0 rejected: orcpt=rfc822;{xtext(a)}",
]
MAIL_SHAPES: list[Shape] = [
    # Postfix; Exim; a forwarder.
    lambda a: f"550 5.1.8 <{internal(a)}>: Sender address rejected: Domain not found",
    lambda a: f"550 SPF: see http://spf.example/why?id={quote(a, safe='')}&ip=192.0.2.1",
    lambda a: f"550 <SRS0=ab+12=XY={a.rpartition('@')[2]}=joe@fwd.example> is no sender of ours",
]
EOD_SHAPES: list[Shape] = [
    lambda s: f"554 5.7.1 Rejected by the filter. Subject: {s}",
    lambda s: f'554 5.7.1 Refused by the filter: "{s[: max(len(s) - 4, 8)]}..." is on its list',
    lambda s: f"550 5.7.1 Command rejected (Subject='{s}')",
]
HARMLESS = "joe@here.invalid"


def folded(reply: str, width: int) -> str:
    """Fold a reply into lines of `width` with the code and the enhanced code; long words are split.

    A reply with an escape stays whole: half an escape could not be recognised.
    """
    if width == 0 or "\r\n" in reply or "(#" in reply or "%40" in reply:
        return reply
    code, text = reply[:3], reply[4:]
    first = text.partition(" ")[0]
    enhanced = f"{first} " if first.count(".") == 2 and first.replace(".", "").isdigit() else ""
    text = text.removeprefix(enhanced)
    parts = textwrap.wrap(text, width, break_on_hyphens=False)
    return "\r\n".join(
        [*(f"{code}-{enhanced}{part}" for part in parts[:-1]), f"{code} {enhanced}{parts[-1]}"]
    )


SUBJECT = PHRASE.map(str.strip).filter(
    lambda text: len(text) > 3 and any(c.isalnum() and c.isascii() for c in text)
)
JOE, JIM = "joe@there.example", "jim@there.example"


Said = tuple[Phase, Callable[[str], tuple[str, tuple[str, ...]]], Shape]
"""The phase of a reply, the sender and the recipients that it may name, and its words."""
AS_RECIPIENT: list[Said] = [
    (Phase.RCPT, lambda address: ("list@here.example", (address,)), shape) for shape in RCPT_SHAPES
]
AS_SENDER: list[Said] = [
    *((Phase.RCPT, lambda address: (address, (JOE,)), shape) for shape in MAIL_SHAPES),
    *((Phase.MAIL, lambda address: (address, ()), shape) for shape in MAIL_SHAPES),
]
IN_CONTENT: list[Said] = [
    (Phase.EOD, lambda _: ("x@here.example", (JOE, JIM)), shape) for shape in EOD_SHAPES
]
SAYING = st.tuples(st.sampled_from(AS_RECIPIENT) | st.sampled_from(AS_SENDER), ADDRESS, st.just(HARMLESS))
SAYING |= st.tuples(st.sampled_from(IN_CONTENT), SUBJECT, st.just("a harmless one"))
# A line break within a domain leaves half of the domain on the line.
BROKEN = AS_RECIPIENT[-1], '"24 hours"@throttl.throttl.throttl.example', HARMLESS


@given(st.sampled_from([None, *providers()]), SAYING, st.sampled_from([0, 0, 24, 50]))
@example(None, BROKEN, 24)
def test_client_text_that_a_reply_quotes_never_changes_the_verdict(
    provider: str | None, saying: tuple[Said, str, str], width: int
) -> None:
    (phase, words, says), text, harmless = saying
    width = width if phase is Phase.RCPT else 0

    ruling = judge_of(provider).ruling(phase, parsed(folded(says(text), width)), *words(text))
    expected = judge_of(provider).ruling(phase, parsed(says(harmless)), *words(harmless))

    # If it is uncertain whose words they are, the message is deferred, which harms no other mail.
    is_in_doubt = ruling.rule is None and ruling.verdict is Verdict.DEFER
    assert is_in_doubt or ruling.words == expected.words


@pytest.mark.parametrize(
    "text",
    [
        '554 5.7.1 The attachment "daily sending quota exceeded.pdf" is not allowed',
        "554 5.7.1 Rejected: Subject: your account has been suspended",
        "554 5.7.1 <too many messages, try again in 5 hours> is on our list",
        "550 5.7.1 no mail for throttle.hourly@limit.example",
    ],
)
def test_words_that_look_like_a_quotation_never_stop_the_upstream(text: str) -> None:
    ruling = judge_of(None).ruling(Phase.EOD, parsed(text))
    assert ruling.verdict in (Verdict.BOUNCE, Verdict.DEFER)
