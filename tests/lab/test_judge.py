"""The judge sees each kind of broken promise, on a spool in a plain folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from relay.envelope import Envelope
from relay.listener.received import received_line
from relay.spool.durable import RealDisk
from relay.spool.intake import MaildirIntake, prepare
from tests.fakes.clock import START_WALL_NS, FakeClock
from tests.lab.book import Book, Letter, Order
from tests.lab.judge import judge
from tests.spool.world import Violation

SENDER, RECIPIENT = "front0@front.test", "ok0-0@list.test"
LETTER = Letter(0, SENDER, (RECIPIENT,), b"Subject: 0\r\n\r\nhello\r\n")
PLACE = 100


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """Return what is known of one message that is in the spool as it was handed over."""
    root, disk, clock = str(tmp_path / "spool"), RealDisk(), FakeClock()
    prepare(root, disk)
    intake = MaildirIntake(root, disk, clock)
    draft = intake.draft()
    draft.append(
        received_line(
            helo="c", address="127.0.0.1", hostname="h", protocol="ESMTP", queue_id=draft.queue_id, wall_ns=0
        )
    )
    draft.append(LETTER.content)
    envelope = Envelope(SENDER, LETTER.recipients, START_WALL_NS, "unknown[127.0.0.1]", "c", "ESMTP")
    assert intake.accept([(draft, envelope)]) == [None]
    known = Book()
    known.offered[0] = (0, LETTER)
    known.accepted[0] = (PLACE, draft.queue_id)
    return known


def _id(book: Book) -> str:
    return book.accepted[0][1]


def test_a_message_as_it_was_handed_over_breaks_no_promise(tmp_path: Path, book: Book) -> None:
    seen = judge(tmp_path, book, RealDisk())

    assert (seen.found, seen.ended, seen.repeats) == (1, 0, 0)


def _lost(book: Book) -> None:
    book.offered[1] = (0, Letter(1, "front1@front.test", ("ok1-0@list.test",), b"x\r\n"))
    book.accepted[1] = (PLACE, "0" * 16)


def _other_content(book: Book) -> None:
    book.offered[0] = (0, Letter(0, SENDER, LETTER.recipients, LETTER.content + b"!"))


def _other_envelope(book: Book) -> None:
    book.offered[0] = (0, Letter(0, SENDER, (*LETTER.recipients, "ok0-1@list.test"), LETTER.content))


def _never_offered(book: Book) -> None:
    book.offered.clear()
    book.accepted.clear()


def _told_relayed(book: Book) -> None:
    book.taken[RECIPIENT] = [(PLACE, LETTER.content)]
    book.told[_id(book), RECIPIENT] = [(PLACE, "sent")]


def _reported(book: Book) -> None:
    book.told[f"{_id(book)}r", SENDER] = [(PLACE, "sent")]


def _held(book: Book) -> None:
    book.orders.append((PLACE, Order("hold", _id(book), PLACE, PLACE)))


def _deleted(book: Book) -> None:
    book.orders.append((PLACE, Order("delete", _id(book), PLACE, PLACE)))


def _counted_upstream(book: Book) -> None:
    book.mails.append((PLACE, None))


@pytest.mark.parametrize(
    ("broken", "verdict"),
    [
        (_lost, "accepted, and lost for"),
        (_other_content, "other content"),
        (_other_envelope, "another envelope"),
        (_never_offered, "nobody handed over"),
        (_told_relayed, "is TODO; told"),
        (_reported, "is back"),
        (_held, "is not held"),
        (_deleted, "is TODO"),
        (_counted_upstream, "charged"),
    ],
)
def test_each_broken_promise_is_seen(
    tmp_path: Path, book: Book, broken: Callable[[Book], None], verdict: str
) -> None:
    broken(book)

    with pytest.raises(Violation, match=verdict):
        judge(tmp_path, book, RealDisk())


def test_what_was_learned_later_obliges_nobody_earlier(tmp_path: Path, book: Book) -> None:
    _told_relayed(book)
    _held(book)
    _counted_upstream(book)

    judge(tmp_path, book.until(PLACE - 1), RealDisk())


def test_an_order_that_was_not_answered_yet_may_be_done_or_not(tmp_path: Path, book: Book) -> None:
    book.orders.append((PLACE, Order("hold", _id(book), PLACE, PLACE + 1)))

    assert book.until(PLACE).obligations() == [PLACE]
    judge(tmp_path, book.until(PLACE), RealDisk())


def test_what_was_known_at_a_cut_is_known_from_the_beginning_of_the_next_play(
    tmp_path: Path, book: Book
) -> None:
    _lost(book)
    known = book.until(PLACE).at_the_beginning()

    assert known.until(0) == known
    with pytest.raises(Violation, match="accepted, and lost"):
        judge(tmp_path, known, RealDisk())
