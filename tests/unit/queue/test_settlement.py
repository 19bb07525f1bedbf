"""What an attempt means for a message: the promises, for any replies in any mixture."""

from hypothesis import given
from hypothesis import strategies as st

from relay.queue.settlement import Fate, Next, Settlement, Terms, settle
from relay.smtp.reply import Phase, Reply
from relay.verdicts.outcome import Answer, Outcome, gravest
from relay.verdicts.verdict import ABOUT_US, Verdict

HOUR_NS = 3600 * 10**9
TERMS = Terms(HOUR_NS // 12, 4 * HOUR_NS, 120 * HOUR_NS, 4 * HOUR_NS)

verdicts = st.lists(st.sampled_from(list(Verdict)), min_size=1, max_size=6)
ages_ns = st.integers(0, 200 * HOUR_NS)


def an_answer(verdict: Verdict) -> Answer:
    code = {
        Verdict.RELAYED: 250,
        Verdict.DEFER: 451,
        Verdict.LATER: 452,
        Verdict.BOUNCE: 550,
        Verdict.PAUSE: 421,
        Verdict.STOP: 535,
    }[verdict]
    return Answer(verdict, Phase.EOD, Reply(code, None, "said"), f"{code} said")


def an_outcome(*given_verdicts: Verdict) -> Outcome:
    answers = tuple(an_answer(verdict) for verdict in given_verdicts)
    return Outcome(answers, pause=gravest(answers))


def settled(
    *given_verdicts: Verdict, age_ns: int = 0, more: int = 0, tried: frozenset[int] = frozenset()
) -> Settlement:
    count = len(given_verdicts)
    return settle(
        left=range(count + more),
        asked=range(count),
        tried_before=tried,
        outcome=an_outcome(*given_verdicts),
        age_ns=age_ns,
        terms=TERMS,
    )


@given(verdicts, ages_ns, st.integers(0, 3))
def test_only_a_refusal_of_the_recipient_itself_can_fail_it(
    given_verdicts: list[Verdict], age_ns: int, more: int
) -> None:
    settlement = settled(*given_verdicts, age_ns=age_ns, more=more)

    for index, (fate, answer) in settlement.fates.items():
        assert (fate is Fate.RELAYED) == (answer.verdict is Verdict.RELAYED)
        assert (fate is Fate.BOUNCED) == (answer.verdict is Verdict.BOUNCE)
        if fate is Fate.EXPIRED:
            assert answer.verdict in (Verdict.DEFER, Verdict.LATER)
            assert age_ns >= TERMS.lifetime_ns
        if given_verdicts[index] in ABOUT_US:
            assert fate is Fate.WAITING


@given(verdicts, ages_ns, st.integers(0, 3))
def test_every_recipient_is_through_or_still_left(
    given_verdicts: list[Verdict], age_ns: int, more: int
) -> None:
    settlement = settled(*given_verdicts, age_ns=age_ns, more=more)

    final = sum(fate in (Fate.RELAYED, Fate.BOUNCED, Fate.EXPIRED) for fate, _ in settlement.fates.values())
    assert settlement.recipients_left == len(given_verdicts) + more - final
    assert (settlement.next is Next.FINISH) == (settlement.recipients_left == 0)


@given(st.sampled_from(sorted(ABOUT_US)), ages_ns, st.integers(1, 4), st.integers(0, 3))
def test_a_refusal_that_is_about_us_changes_nothing_of_the_message(
    verdict: Verdict, age_ns: int, count: int, more: int
) -> None:
    settlement = settled(*[verdict] * count, age_ns=age_ns, more=more)

    assert settlement.next is Next.GIVE_BACK
    assert not settlement.warns
    assert settlement.recipients_left == count + more


@given(verdicts, ages_ns)
def test_a_message_is_asked_again_at_once_only_where_that_makes_progress(
    given_verdicts: list[Verdict], age_ns: int
) -> None:
    """Otherwise one refusing upstream would be asked in a circle, each time for a slot."""
    tried: frozenset[int] = frozenset()
    left = list(range(len(given_verdicts)))
    for _ in range(len(given_verdicts) + 1):
        asked = [index for index in left if index not in tried] or left
        settlement = settle(
            left=left,
            asked=asked,
            tried_before=tried,
            outcome=an_outcome(*(given_verdicts[index] for index in asked)),
            age_ns=age_ns,
            terms=TERMS,
        )
        if settlement.next is not Next.AGAIN:
            return
        assert settlement.tried > tried or settlement.recipients_left < len(left)
        tried = settlement.tried
        done = {i for i, (fate, _) in settlement.fates.items() if fate not in (Fate.DEFERRED, Fate.WAITING)}
        left = [index for index in left if index not in done]
    raise AssertionError("asked in a circle")


def test_recipients_that_were_not_asked_go_before_a_deferred_one_waits() -> None:
    first = settled(Verdict.DEFER, more=1)

    assert first.next is Next.AGAIN
    assert first.tried == {0}


def test_a_deferral_waits_as_long_as_the_message_is_old() -> None:
    settlement = settled(Verdict.DEFER, age_ns=HOUR_NS)

    assert (settlement.next, settlement.back_off_ns) == (Next.POSTPONE, HOUR_NS)


def test_the_last_refusal_after_the_lifetime_expires_a_recipient() -> None:
    settlement = settled(Verdict.DEFER, Verdict.RELAYED, age_ns=TERMS.lifetime_ns)

    assert settlement.fates[0][0] is Fate.EXPIRED
    assert settlement.next is Next.FINISH


def test_silence_never_expires_a_message_however_old() -> None:
    """After the final dot it may even have been relayed: nobody refused it."""
    lost = Answer(Verdict.DEFER, Phase.EOD, None, "no reply to the final dot")

    settlement = settle(
        left=[0],
        asked=[0],
        tried_before=(),
        outcome=Outcome((lost,), is_ambiguous=True),
        age_ns=2 * TERMS.lifetime_ns,
        terms=TERMS,
    )

    assert (settlement.next, settlement.fates[0][0]) == (Next.POSTPONE, Fate.DEFERRED)


def test_too_many_recipients_is_no_attempt_while_others_are_taken() -> None:
    settlement = settled(Verdict.RELAYED, Verdict.LATER, age_ns=TERMS.lifetime_ns)

    assert settlement.fates[1][0] is Fate.WAITING
    assert settlement.next is Next.AGAIN


def test_a_kept_connection_that_died_before_mail_is_no_attempt() -> None:
    unasked = Answer(Verdict.LATER, Phase.MAIL, None, "the upstream closed the connection")

    settlement = settle(
        left=[0],
        asked=[0],
        tried_before=(),
        outcome=Outcome((unasked,)),
        age_ns=2 * TERMS.lifetime_ns,
        terms=TERMS,
    )

    assert (settlement.next, settlement.fates[0][0]) == (Next.GIVE_BACK, Fate.WAITING)


def test_a_late_message_warns_once_it_is_deferred() -> None:
    assert settled(Verdict.DEFER, age_ns=TERMS.warn_after_ns or 0).warns
    assert not settled(Verdict.DEFER, age_ns=(TERMS.warn_after_ns or 0) - 1).warns


def test_a_message_that_is_deferred_for_who_was_refused_before_is_not_deferred_for_nothing() -> None:
    settlement = settled(Verdict.RELAYED, more=1, tried=frozenset({1}))

    assert settlement.next is Next.POSTPONE
    assert settlement.reason
