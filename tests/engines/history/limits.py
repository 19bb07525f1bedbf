"""Short forms for limits, and for what tests ask of a throttle."""

from collections.abc import Sequence
from pathlib import Path

from relay.clock import SECOND_NS
from relay.policy.lane import Unit
from relay.spool.disk.durable import Disk
from relay.throttle.admission import Request, TooLarge, Wait
from relay.throttle.book import Book, Bounds
from relay.throttle.file_history import REPLACE_ABOVE_BYTES, FileHistory
from relay.throttle.limit import ForEach, Limit
from relay.throttle.throttle import Reservation, Throttle
from tests.fakes.clock import FakeClock

TRANSACTION_NS = 100 * SECOND_NS


def limit(
    count: int, per_ns: int, unit: Unit = "messages", for_each: ForEach | None = None, only: str | None = None
) -> Limit:
    each = f" for each {for_each}" if for_each else ""
    label = f"{count} {unit} per {per_ns / SECOND_NS:g}s{each}"
    return Limit(unit, count, per_ns, label, for_each, only)


def messages(count: int, seconds: float, for_each: ForEach | None = None) -> Limit:
    return limit(count, int(seconds * SECOND_NS), for_each=for_each)


def recipients(count: int, seconds: float) -> Limit:
    return limit(count, int(seconds * SECOND_NS), "recipients")


def throttle(
    path: Path,
    disk: Disk,
    clock: FakeClock,
    limits: Sequence[Limit],
    *,
    replace_above_bytes: int = REPLACE_ABOVE_BYTES,
    bounds: Bounds | None = None,
) -> Throttle:
    history = FileHistory(path, disk, clock, replace_above_bytes=replace_above_bytes)
    book = None if bounds is None else Book(bounds)
    return Throttle(history, limits, clock, transaction_ns=TRANSACTION_NS, book=book)


def ask(throttle: Throttle, *wanted: int) -> list[Reservation | Wait | TooLarge]:
    return throttle.reserve([Request(each) for each in wanted])


def granted(throttle: Throttle, *wanted: int) -> list[Reservation]:
    """Ask, and return only the reservations."""
    return [answer for answer in ask(throttle, *wanted) if isinstance(answer, Reservation)]


def waiting(throttle: Throttle) -> Wait:
    (answer,) = ask(throttle, 1)
    assert isinstance(answer, Wait)
    return answer


def settle(throttle: Throttle, clock: FakeClock, *reservations: Reservation) -> None:
    for each in reservations:
        throttle.settle(each, clock.boottime_ns())
