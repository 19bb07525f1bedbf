"""A ceiling is a limit on one lane: no other feels it, and what may be of the lane counts for it."""

from pathlib import Path

from relay.clock import SECOND_NS
from relay.spool.disk.durable import Disk
from relay.status.estimate.expected import ceiling_words, limit_words
from relay.throttle.admission import Place, Request, Wait
from relay.throttle.gauge import Gauge
from relay.throttle.history_format import UNKNOWN, Charged, Share
from relay.throttle.throttle import Reservation
from tests.fakes.clock import FakeClock
from tests.unit.throttle.limits import PerPeriod, connections, messages, recipients, settle, throttle

MINUTE_NS = 60 * SECOND_NS


def _ceiling(count: int, only: str, unit: str = "messages") -> PerPeriod:
    limit = recipients(count, 60, "lane") if unit == "recipients" else messages(count, 60, "lane")
    return PerPeriod(limit.count, limit.per_ns, limit.unit, "lane", only)


def test_a_full_lane_waits_in_its_place_and_all_others_go_on(
    disk: Disk, clock: FakeClock, path: Path
) -> None:
    account = throttle(path, disk, clock, [messages(5, 60), _ceiling(2, "list")])

    answers = account.reserve(
        [Request(1, lane=lane) for lane in ("list", "list", "list", "", "other", "list")]
    )

    assert [isinstance(answer, Reservation) for answer in answers] == [True, True, False, True, True, False]
    waits = [answer for answer in answers if isinstance(answer, Wait)]
    assert {wait.place for wait in waits} == {Place("lane", "list")}
    assert account.room_in("list")[0] == 0
    assert account.room_in("other") == (None, clock.boottime_ns())


def test_a_message_is_split_to_fit_under_a_ceiling_in_recipients(
    disk: Disk, clock: FakeClock, path: Path
) -> None:
    account = throttle(path, disk, clock, [recipients(10, 60), _ceiling(4, "list", "recipients")])

    (answer,) = account.reserve([Request(9, lane="list")])

    assert isinstance(answer, Reservation)
    assert answer.recipients == 4
    (answer,) = account.reserve([Request(9, lane="other")])
    assert isinstance(answer, Reservation)
    assert answer.recipients == 6


def test_a_new_ceiling_knows_what_the_lane_holds(disk: Disk, clock: FakeClock, path: Path) -> None:
    limits = [messages(20, 60)]
    account = throttle(path, disk, clock, limits)
    answers = account.reserve([Request(1, lane=lane) for lane in ("list", "other", "list", "other", "other")])
    settle(account, clock, *[answer for answer in answers if isinstance(answer, Reservation)])
    account.flush()

    ceilings = [*limits, _ceiling(4, "list"), _ceiling(4, "other")]
    account.replan(ceilings, 0)
    anew = throttle(path, disk, clock, ceilings)
    anew.flush()

    for each in (account, anew):
        assert [each.room_in(lane)[0] for lane in ("list", "other", "third")] == [2, 1, None]
        assert [usage.used for usage in each.usage()] == [5, 2, 3]


def test_what_a_relay_without_lanes_sent_may_have_been_of_any_lane(
    disk: Disk, clock: FakeClock, path: Path
) -> None:
    throttle(path, disk, clock, [messages(20, 60)]).reserve([Request(1)] * 3)

    account = throttle(path, disk, clock, [messages(20, 60), _ceiling(4, "list")])
    account.flush()

    assert account.room_in("list")[0] == 1


def test_merged_mail_of_no_known_lane_counts_for_every_ceiling() -> None:
    gauge = Gauge(_ceiling(10, "list"), 0)
    shares = (Share("lane", "list", 2, 2), Share("lane", "other", 3, 3), Share("lane", UNKNOWN, 4, 4))

    gauge.charge(Charged(0, 9, 9, shares=shares), 0)

    assert gauge.used("list", 1) == 2 + 4
    assert gauge.usage(1).key == "list"
    assert gauge.used("list", MINUTE_NS) == 0


def test_a_key_waits_for_no_ceiling_of_another_lane(disk: Disk, clock: FakeClock, path: Path) -> None:
    limits = [messages(1, 60, "sender"), _ceiling(1, "list")]
    account = throttle(path, disk, clock, limits)

    _, wait = account.reserve([Request(1, sender="a", lane="other"), Request(1, sender="a", lane="other")])

    assert isinstance(wait, Wait)
    assert wait.place == Place("sender", "a")


def test_the_audit_counts_for_a_ceiling_what_is_of_its_lane_alone(
    disk: Disk, clock: FakeClock, path: Path
) -> None:
    account = throttle(path, disk, clock, [messages(9, 60), _ceiling(2, "list")])
    account.reserve([Request(1, lane=lane) for lane in ("list", "other", "other")])

    _, of_list = account.audit().findings

    assert (of_list.most, of_list.is_exceeded) == (1, False)


def test_a_connection_in_flight_occupies_no_limit_on_messages(
    disk: Disk, clock: FakeClock, path: Path
) -> None:
    account = throttle(path, disk, clock, [messages(9, 60), connections(9, 60)])
    account.reserve([Request(1)])
    account.reserve_connection(MINUTE_NS)

    of_messages, of_connections = account.limited(0)

    assert (len(of_messages.shared), len(of_connections.shared)) == (1, 1)


def test_no_estimate_counts_other_lanes_under_a_ceiling(disk: Disk, clock: FakeClock, path: Path) -> None:
    account = throttle(path, disk, clock, [messages(9, 60), _ceiling(2, "list")])
    account.reserve([Request(1, lane=lane) for lane in ("list", "other", "other")])

    of_all, of_list = account.limited(0)

    assert (len(of_all.shared), of_list.only, of_list.shared) == (3, "list", ())
    assert [weight for _, weight in of_list.of_key["list"]] == [1]


def test_a_ceiling_is_told_by_its_lane_and_a_limit_by_its_key() -> None:
    assert ceiling_words("list") == "ceiling of lane list"
    assert [limit_words("5 a day"), limit_words("5 a day", "x"), limit_words("5 a day", "")] == [
        "limit 5 a day",
        "limit 5 a day (x)",
        "limit 5 a day (<>)",
    ]
