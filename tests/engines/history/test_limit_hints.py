"""What a refusal teaches of the limits: a finding in words, and at most a lower limit."""

from dataclasses import replace
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.sender.state_file import LESSONS_FORMAT
from relay.throttle.hint import finding_to_json
from relay.throttle.limit import Unit
from relay.throttle.limit_hints import Effective, Lessons, Lowered, Tally, compare, in_force, tighten
from relay.throttle.throttle import Reservation
from relay.verdicts.verdict import Excess, Named, Ruling, Scope, Span, Verdict, excess_of, named_of
from tests.engines.history.limits import TRANSACTION_NS, granted, settle, throttle
from tests.engines.history.memory_disk import MemoryDisk
from tests.fakes.clock import FakeClock

MINUTE_NS, HOUR_NS = 60 * SECOND_NS, 3600 * SECOND_NS
REFUSAL = Ruling(Verdict.PAUSE, Scope.UPSTREAM, span=Span.HOUR, excess=Excess.MAIL)


def a_limit(count: int, per_ns: int = HOUR_NS, unit: Unit = "recipients") -> Effective:
    return Effective(unit, count, per_ns, None, f"{count} {unit} per {per_ns / SECOND_NS:g}s")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("you have exceeded your sending limit of 50 recipients per 3600s", Named(50, "recipients", HOUR_NS)),
        ("limit of 1,000 messages per day reached", Named(1000, "messages", None)),
        ("at most 30 e-mails in 10 minutes", Named(30, "messages", 10 * MINUTE_NS)),
        ("too many recipients per hour", None),
        ("0 messages per hour", None),
        ("rate limited, 550-5.7.1 2 messages left", None),
        ("ip 192.0.2.50 messages per hour exceeded", None),
    ],
)
def test_a_limit_that_a_refusal_names_is_read(text: str, named: Named | None) -> None:
    assert named_of(text) == named


@pytest.mark.parametrize(
    ("text", "excess"),
    [
        ("domain example.org has exceeded the max emails per hour (125/100 (125%)) allowed.", Excess.MAIL),
        ("daily user sending limit exceeded", Excess.MAIL),
        ("throttling failure: maximum sending rate exceeded", Excess.MAIL),
        ("stop, you are sending too fast!", Excess.MAIL),
        ("too many connections per minute", Excess.CONNECTIONS),
        ("too many messages per connection", None),
        ("too many connections from 192.0.2.1", None),
        ("exceeded the max defers and failures per hour (5/5 (100%)) allowed", None),
        ("too many login attempts, please try again later", None),
        ("temporarily rate limited due to ip reputation", None),
        ("temporary system problem", None),
    ],
)
def test_what_there_was_too_much_of_is_told_by_the_words(text: str, excess: Excess | None) -> None:
    assert excess_of(text) is excess


def test_a_finding_says_what_went_well_and_what_to_try() -> None:
    tally = Tally(40, 97, 3, since_ns=57 * MINUTE_NS)

    (finding,) = compare(REFUSAL, [a_limit(100)], lambda _: tally, at_ns=5)
    ruling = replace(REFUSAL, named=Named(50, "recipients", HOUR_NS))
    (named,) = compare(ruling, [a_limit(300, 24 * HOUR_NS), a_limit(100)], lambda _: tally, at_ns=0)

    assert str(finding) == "cut off after 97 recipients in 57 min; policy says 100 per 1h; suggested 90"
    assert str(named).endswith("the upstream says 50; suggested 50")
    told = finding_to_json(finding)
    assert (told["limit"], told["sent"], told["suggested"]) == ("100 recipients per 3600s", 97, 90)
    # It stays until the policy is as strict.
    lessons = Lessons((finding,))
    assert LESSONS_FORMAT.parse(LESSONS_FORMAT.render(lessons)) == lessons
    assert lessons.under([a_limit(91)], adapts=False).findings
    assert not lessons.under([a_limit(90)], adapts=False).findings


def test_a_limit_is_lowered_by_half_at_most_and_once_a_window() -> None:
    limits = [a_limit(100)]

    def finding(at_ns: int, sent: int = 3) -> Lowered | None:
        (hint,) = compare(REFUSAL, limits, lambda _: Tally(sent, sent), at_ns)
        return tighten(hint, limits, lowered)

    lowered: list[Lowered] = []
    assert (finding(0, sent=97) or Lowered("bytes", 0, 0, 0, 0)).count == 90
    first = finding(0)
    assert first == Lowered("recipients", HOUR_NS, 100, 50, 0)
    lowered = [first]
    assert [each.count for each in in_force(limits, lowered)] == [50]
    assert finding(HOUR_NS - 1) is None
    again = finding(HOUR_NS)
    assert again is not None
    assert again.count == 25
    # The owner's edit ends it.
    assert Lessons((), (again,)).under([a_limit(99)], adapts=True).lowered == ()


def test_a_record_that_would_raise_a_limit_is_not_read() -> None:
    raised = LESSONS_FORMAT.render(Lessons((), (Lowered("messages", HOUR_NS, 10, 11, 0),)))
    for content in (b"", b"[]", b'{"findings": 1}', raised):
        with pytest.raises(ValueError, match="not a record of refusals"):
            LESSONS_FORMAT.parse(content)


def test_what_went_in_a_span_is_told_without_what_is_in_flight(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(Path("/history/isp"), memory, clock, [])
    for recipients in (3, 4):
        settle(account, clock, *granted(account, recipients))
        clock.advance(SECOND_NS)
    granted(account, 1000)
    connection = account.reserve_connection(SECOND_NS)
    assert isinstance(connection, Reservation)
    settle(account, clock, connection)

    assert account.tally(HOUR_NS) == Tally(2, 7, 1, 2 * SECOND_NS)
    assert account.leaves_in_ns(HOUR_NS) == HOUR_NS - 2 * SECOND_NS
    assert account.peak(HOUR_NS) == Tally()
    clock.advance(HOUR_NS + TRANSACTION_NS)
    assert account.tally(HOUR_NS) == Tally()
    assert account.leaves_in_ns(HOUR_NS) is None
    assert account.peak(HOUR_NS).recipients == 1007
