"""For how long the mail of a refused sender waits, and what of that is no age of it."""

from relay.queue.sender_pauses import FIRST_REST_NS, LONGEST_REST_NS, MOST_RESTING, SenderPauses
from relay.verdicts.decision import EVIDENT


def test_each_pause_in_a_row_is_twice_as_long_as_the_one_before_up_to_the_longest_or_what_is_asked() -> None:
    pauses, now_ns, lengths = SenderPauses(), 0, list[int]()
    for _ in range(6):
        until_ns = pauses.begin("s", now_ns, "no")
        lengths.append((until_ns - now_ns) // FIRST_REST_NS)
        now_ns = until_ns
    assert lengths == [1, 2, 4, 8, 16, LONGEST_REST_NS // FIRST_REST_NS]
    asked_ns = 2 * LONGEST_REST_NS
    assert pauses.begin("s", now_ns, "no", asked_ns=asked_ns) == now_ns + asked_ns
    pauses.end("s", now_ns)
    assert pauses.begin("s", now_ns, "no") == now_ns + FIRST_REST_NS


def test_a_refusal_in_a_pause_is_of_the_same_block_and_lengthens_it_by_what_it_asks() -> None:
    pauses = SenderPauses()
    until_ns = pauses.begin("s", 0, "no")
    assert pauses.begin("s", 5, "no") == until_ns
    assert pauses.begin("s", 5, "no", asked_ns=until_ns) == until_ns + 5
    assert pauses.rests_of("s") == ((0, until_ns + 5),)


def test_pauses_are_no_age_but_where_the_shield_began_them_and_one_that_was_ended_is_none() -> None:
    pauses = SenderPauses()
    first_ns = pauses.begin("s", 0, "no")
    assert pauses.rests_of("s") == ((0, first_ns),)
    second_ns = pauses.begin("s", first_ns, "no", ages=True)
    assert pauses.rests_of("s") == ((0, first_ns),)
    third_ns = pauses.begin("s", second_ns, "no")
    assert pauses.rests_of("s") == ((0, first_ns), (second_ns, third_ns))
    pauses.end("s", second_ns + 7)
    assert pauses.rests_of("s") == ((0, first_ns), (second_ns, second_ns + 7))
    assert pauses.current("s", second_ns + 7) is None
    assert pauses.senders() == {}


def test_refusals_in_a_row_are_the_senders_own_once_enough_have_others_relayed_in_between() -> None:
    pauses, now_ns = SenderPauses(), 0
    for count in range(EVIDENT):
        assert not pauses.is_alone("s", now_ns), count
        now_ns = pauses.begin("s", now_ns, "no", relayed_from_ns=now_ns)
    assert pauses.is_alone("s", now_ns)
    assert not pauses.is_alone("s", 0), "nothing else was relayed since"
    now_ns = pauses.begin("s", now_ns, "no")
    assert not pauses.is_alone("s", now_ns), "so it begins anew"


def test_of_more_senders_than_are_remembered_the_oldest_is_asked_about_again() -> None:
    pauses = SenderPauses()
    for number in range(MOST_RESTING + 1):
        pauses.begin(str(number), 0, "no")
    assert pauses.current("0", 1) is None
    assert len(pauses.senders()) == MOST_RESTING
