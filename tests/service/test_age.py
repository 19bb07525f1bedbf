"""What makes a message older and what does not: it is returned for its own sake or not at all."""

from pathlib import Path

from relay.clock import SECOND_NS
from relay.scheduler import State
from tests.fakes.clock import LeapingClock
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.service.house import House, policy_of

DAY_NS = 86400 * SECOND_NS
RETRY = "retry: {min: 1h, max: 2h, lifetime: 1d, warn_after: null}"
NOT_HIS = "553 5.7.1 Sender address rejected: not owned by user mjd"


async def test_time_that_a_sender_rested_is_no_age_of_its_mail(tmp_path: Path) -> None:
    clock = LeapingClock()
    script = Script(mail=turns(NOT_HIS), rcpt=turns("451 4.7.1 Greylisted, try later"))
    async with (
        Smarthost(script) as host,
        House(policy_of(tmp_path, host.port, ", pipelining: false", RETRY), clock=clock) as house,
    ):
        queue_id = house.accept()
        await house.until(lambda: (q := house.queued(queue_id)) and q.is_sitting_out)
        clock.ahead_ns += 2 * DAY_NS
        house.heart.wake()
        await house.until(
            lambda: ((q := house.queued(queue_id)) and "Greylisted" in q.reason) or not house.sender.scheduler
        )

        queued = house.queued(queue_id)
        assert queued is not None
        assert queued.state is State.DEFERRED
        assert queued.due_at_ns - clock.boottime_ns() <= 3600 * SECOND_NS
