"""The judge sees each kind of broken promise, on a spool in a plain folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.listener.received import received_line
from relay.mail.envelope import Envelope, QueueId
from relay.mail.report import Action, Failure, Reason, ReportedMessage, delay_warning, failure_report
from relay.spool.durable import RealDisk
from relay.spool.identity import report_id, warning_id
from relay.spool.maildir.drafts import MaildirIntake, prepare
from relay.spool.maildir.engine import MaildirSpool
from tests.fakes.clock import START_WALL_NS, FakeClock
from tests.proofs.lab.book import Book, Letter, Order
from tests.proofs.lab.judge import judge
from tests.unit.spool.world import Violation

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


def _publish(folder: Path, queue_id: QueueId, content: bytes) -> None:
    spool = MaildirSpool(str(folder / "spool"), RealDisk(), FakeClock())
    envelope = Envelope("", (SENDER,), START_WALL_NS, "local", "h", "local")
    spool.recover()
    assert spool.publish_report(queue_id, envelope, content)
    spool.close()


def _warning(book: Book) -> bytes:
    message, waits = _reported_as(book, Action.DELAYED)
    return delay_warning(message, waits, hostname="h", at_ns=START_WALL_NS, will_retry_until_ns=START_WALL_NS)


def _reported_as(book: Book, action: Action) -> tuple[ReportedMessage, list[Failure]]:
    envelope = Envelope(SENDER, LETTER.recipients, START_WALL_NS, "unknown[127.0.0.1]", "c", "ESMTP")
    message = ReportedMessage(QueueId(_id(book)), envelope, b"Subject: 0\r\n")
    return message, [Failure(RECIPIENT, "4.4.7", action, None, None, START_WALL_NS, Reason.EXPIRED)]


def test_who_only_waits_may_be_warned_of(tmp_path: Path, book: Book) -> None:
    _publish(tmp_path, warning_id(QueueId(_id(book))), _warning(book))

    assert judge(tmp_path, book, RealDisk()).found == 2


def test_who_was_never_refused_may_not_be_reported(tmp_path: Path, book: Book) -> None:
    message, fails = _reported_as(book, Action.FAILED)
    report = failure_report(message, fails, hostname="h", at_ns=START_WALL_NS)
    _publish(tmp_path, report_id(message.queue_id), report)

    with pytest.raises(Violation, match="never failed"):
        judge(tmp_path, book, RealDisk())


def test_a_warning_is_no_report(tmp_path: Path, book: Book) -> None:
    book.taken[SENDER] = [(PLACE, _warning(book))]
    book.refused[RECIPIENT] = [(PLACE, "550 5.1.1 nobody")]
    shutil.rmtree(tmp_path / "spool" / "new")

    with pytest.raises(Violation, match="accepted, and lost"):
        judge(tmp_path, book, RealDisk())
