"""How long the mail of a refused sender waits, and which part of that time does not count as age."""

from relay.queue.sender_pauses import FIRST_REST_NS, LONGEST_REST_NS, MOST_RESTING, SenderPauses
from relay.verdicts.decision import EVIDENT


def test_pauses_in_a_row_double_up_to_the_longest_or_to_what_a_reply_asks() -> None:
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


def test_a_refusal_during_a_pause_extends_it_only_as_far_as_the_reply_asks() -> None:
    pauses = SenderPauses()
    until_ns = pauses.begin("s", 0, "no")
    assert pauses.begin("s", 5, "no") == until_ns
    assert pauses.begin("s", 5, "no", asked_ns=until_ns) == until_ns + 5
    assert pauses.rests_of("s") == ((0, until_ns + 5),)


def test_a_pause_does_not_count_as_age_unless_the_shield_began_it() -> None:
    pauses = SenderPauses()
    first_ns = pauses.begin("s", 0, "no")
    assert pauses.rests_of("s") == ((0, first_ns),)
    second_ns = pauses.begin("s", first_ns, "no", ages=True)
    assert pauses.rests_of("s") == ((0, first_ns),)
    third_ns = pauses.begin("s", second_ns, "no")
    assert pauses.rests_of("s") == ((0, first_ns), (second_ns, third_ns))
    pauses.end("s", second_ns + 7)
    assert pauses.rests_of("s") == ((0, first_ns), (second_ns, second_ns + 7))
    assert pauses.of("s", second_ns + 7) is None
    assert pauses.senders() == {}


def test_a_sender_is_alone_after_enough_refusals_with_others_relayed_in_between() -> None:
    pauses, now_ns = SenderPauses(), 0
    for count in range(EVIDENT):
        assert not pauses.is_alone("s", now_ns), count
        now_ns = pauses.begin("s", now_ns, "no", relayed_from_ns=now_ns)
    assert pauses.is_alone("s", now_ns)
    assert not pauses.is_alone("s", 0), "nothing else was relayed since"
    now_ns = pauses.begin("s", now_ns, "no")
    assert not pauses.is_alone("s", now_ns), "so it begins anew"


def test_the_oldest_pause_is_forgotten_beyond_the_most_that_are_kept() -> None:
    pauses = SenderPauses()
    for number in range(MOST_RESTING + 1):
        pauses.begin(str(number), 0, "no")
    assert pauses.of("0", 1) is None
    assert len(pauses.senders()) == MOST_RESTING
