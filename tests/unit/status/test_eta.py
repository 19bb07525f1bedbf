"""The forecast of a line agrees with the throttle itself, and respects pauses and connections."""

from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.policy.lane import Unit
from relay.status.eta import MOST_BEGINS, AccountForecast, Load
from relay.throttle.admission import Request, Reservation, Wait
from relay.throttle.file_history import FileHistory
from relay.throttle.limit import Limit
from relay.throttle.throttle import Throttle
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk

MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS


def limit(unit: Unit, count: int, seconds: int) -> Limit:
    per_ns, label = seconds * SECOND_NS, f"{count} {unit} per {seconds}s"
    return Limit(unit, count, per_ns, label, guard_ns=min(per_ns // 100, SECOND_NS))


def limits_of(*units: Unit) -> st.SearchStrategy[Limit]:
    return st.builds(limit, st.sampled_from(units), st.integers(1, 9), st.integers(1, 90))


LIMITS = st.lists(limits_of("messages"), min_size=1, max_size=2) | st.lists(
    limits_of("messages", "recipients", "bytes"), min_size=1, max_size=1
)


class Line:
    """Sends messages of one recipient and one octet in turn, each as soon as the throttle allows it."""

    def __init__(self, limits: list[Limit], connections: int, transaction_ns: int) -> None:
        self.clock = FakeClock()
        history = FileHistory(Path("/history/isp"), ModelDisk(), self.clock)
        self.throttle = Throttle(history, limits, self.clock, transaction_ns=HOUR_NS)
        self._connections, self._transaction_ns = connections, transaction_ns
        self._under_way = deque[tuple[int, Reservation]]()

    def relayed_at(self) -> int:
        """Send a message, and return when its transaction will have ended."""
        if len(self._under_way) == self._connections:
            self._end_first()
        while isinstance(answer := self.throttle.reserve([Request(1, size_bytes=1)])[0], Wait):
            if self._under_way and self._under_way[0][0] <= answer.until_ns:
                self._end_first()
            else:
                self.clock.advance(answer.until_ns - self.clock.boottime_ns())
        assert isinstance(answer, Reservation)
        ends_ns = self.clock.boottime_ns() + self._transaction_ns
        self._under_way.append((ends_ns, answer))
        return ends_ns

    def rest(self, for_ns: int) -> None:
        """Wait until every transaction has ended, and then for `for_ns` more."""
        while self._under_way:
            self._end_first()
        self.clock.advance(for_ns)
        self.throttle.flush()

    def _end_first(self) -> None:
        ends_ns, reservation = self._under_way.popleft()
        self.clock.advance(ends_ns - self.clock.boottime_ns())
        self.throttle.settle(reservation, ends_ns)


@given(
    LIMITS,
    st.integers(1, 3),
    st.integers(0, 20),
    st.lists(st.integers(0, 40), max_size=12),
    st.integers(1, 40),
)
def test_each_message_of_a_line_goes_at_the_instant_of_its_forecast(
    limits: list[Limit], connections: int, took: int, pauses: list[int], waiting: int
) -> None:
    # Without a limit of messages, connections are only a bound; use enough of them.
    connections = connections if limits[0].unit == "messages" else waiting
    transaction_ns = took * SECOND_NS
    line = Line(limits, connections, transaction_ns)
    for seconds in pauses:
        line.relayed_at()
        line.rest(seconds * SECOND_NS)
    forecast = AccountForecast(
        line.clock.boottime_ns(),
        line.throttle.usage(transaction_ns),
        connections=connections,
        transaction_ns=transaction_ns,
    )

    expected = [forecast.at(Load(number, number, number)).eta_ns for number in range(1, waiting + 1)]

    assert [line.relayed_at() for _ in expected] == expected


def test_the_end_of_a_long_line_follows_the_rates_of_the_limits() -> None:
    forecast = AccountForecast(
        0, Line([limit("messages", 1, 1), limit("messages", 1000, 3600)], 1, 0).throttle.usage(0)
    )

    ends = [forecast.at(Load(number)).eta_ns or 0 for number in range(1, 3001)]

    assert ends == sorted(ends)
    # With guards: one message a second up to the thousandth, and the next thousand an hour later.
    thousand_ns = 999 * 1010 * SECOND_NS // 1000
    assert MOST_BEGINS < 3000
    assert ends[999] == thousand_ns
    assert abs(ends[-1] - 2 * 3601 * SECOND_NS - thousand_ns) < thousand_ns


@pytest.mark.parametrize(
    ("number", "held_by"),
    [(2, ""), (3, "connections"), (5, "limit 4 messages per 10s"), (9, "limit 8 messages per 60s")],
)
def test_a_message_is_held_by_what_opens_last_and_a_pause_holds_all(number: int, held_by: str) -> None:
    limits = Line([limit("messages", 4, 10), limit("messages", 8, 60)], 2, SECOND_NS).throttle.usage(0)
    forecast = AccountForecast(0, limits, connections=2, transaction_ns=SECOND_NS)

    assert forecast.at(Load(number)).held_by == held_by
    assert AccountForecast(0, rests="pause: 421 no", until_ns=MINUTE_NS).at(Load(1)) == (
        MINUTE_NS,
        "pause: 421 no",
    )
    assert AccountForecast(0, rests="stop: 535", until_ns=None).at(Load(1)) == (None, "stop: 535")
