"""The estimate foresees what a clock does to limits: resets, hours and ramps; and what sizes do."""

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.policy.zones.calendar import CalendarPeriod, OpenHours
from relay.queue.queued import Queued, State, origin_of
from relay.queue.scheduler import Scheduler
from relay.status.estimate.eta import foretell
from relay.status.estimate.expected import NEVER_NS, Mail, Outlook
from relay.throttle.slots import Slots
from tests.unit.throttle.limits import PerPeriod, Rise

HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
NOW_NS = 1000 * SECOND_NS
NOON_NS = 20_000 * DAY_NS + 12 * HOUR_NS
"""By the wall clock, at NOW_NS."""


def _outlook(limit: PerPeriod) -> Outlook:
    slots = Slots()
    slots.time_is(NOW_NS, NOON_NS)
    slots.judge_by([limit], 0)
    return Outlook(NOW_NS, slots.limited(0, NOW_NS), connections=9)


@pytest.mark.parametrize(
    ("limit", "hours"),
    [
        (PerPeriod(2, DAY_NS, calendar=CalendarPeriod("day")), [0, 0, 12, 12, 36]),
        (PerPeriod(2, HOUR_NS, open_hours=OpenHours("Mon-Sun 10:00-14:00")), [0, 0, 1, 1, 22]),
        (PerPeriod(5, 100 * DAY_NS, rise=Rise(1, 5, 4 * DAY_NS)), [0, 24, 48, 72, 96]),
    ],
)
def test_an_estimate_foresees_what_the_clock_brings(limit: PerPeriod, hours: list[int]) -> None:
    found = [each.eta_ns - NOW_NS for each in foretell([Mail(1)] * 5, _outlook(limit))]

    assert [round(each / HOUR_NS) for each in found] == hours


def test_an_estimate_goes_by_sizes_and_tells_what_never_goes() -> None:
    line = Scheduler()
    sizes = [60, 101, 60, 40]
    mails = [Mail(1, queue_id=QueueId(str(number))) for number in range(len(sizes))]
    for mail, size_bytes in zip(mails, sizes, strict=True):
        line.add(Queued(mail.queue_id, origin_of(""), size_bytes, 0, 1, State.WAITING, 0))
    found = foretell(mails, _outlook(PerPeriod(100, HOUR_NS, "bytes")), line)

    assert [each.eta_ns for each in found] == [NOW_NS, NEVER_NS, NOW_NS + HOUR_NS, NOW_NS + HOUR_NS]
    assert found[1].held_by == "limit 100 bytes per 3600s"
