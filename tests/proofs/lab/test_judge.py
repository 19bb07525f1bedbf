"""The judge sees each kind of broken promise, on a spool in a plain folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.listener.received import received_line
from relay.mail.envelope import Envelope, QueueId
from relay.mail.report import Action, Failure, Reason, ReportedMessage, delay_warning, final_report
from relay.spool.disk.durable import RealDisk
from relay.spool.identity import report_id, warning_id
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import prepare
from tests.fakes.clock import START_WALL_NS, FakeClock
from tests.proofs.lab.judge import judge
from tests.proofs.lab.observations import Letter, Observations, Order
from tests.unit.spool.recovering import recover
from tests.unit.spool.world import Violation

SENDER, RECIPIENT = "front0@front.test", "ok0-0@list.test"
LETTER = Letter(0, SENDER, (RECIPIENT,), b"Subject: 0\r\n\r\nhello\r\n")
PLACE = 100


@pytest.fixture
def observed(tmp_path: Path) -> Observations:
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
    known = Observations()
    known.offered[0] = (0, LETTER)
    known.accepted[0] = (PLACE, draft.queue_id)
    return known


def _id(observed: Observations) -> str:
    return observed.accepted[0][1]


def test_a_message_as_it_was_handed_over_breaks_no_promise(tmp_path: Path, observed: Observations) -> None:
    seen = judge(tmp_path, observed, RealDisk())

    assert (seen.found, seen.ended, seen.repeats) == (1, 0, 0)


def _lost(observed: Observations) -> None:
    observed.offered[1] = (0, Letter(1, "front1@front.test", ("ok1-0@list.test",), b"x\r\n"))
    observed.accepted[1] = (PLACE, "0" * 16)


def _other_content(observed: Observations) -> None:
    observed.offered[0] = (0, Letter(0, SENDER, LETTER.recipients, LETTER.content + b"!"))


def _other_envelope(observed: Observations) -> None:
    observed.offered[0] = (0, Letter(0, SENDER, (*LETTER.recipients, "ok0-1@list.test"), LETTER.content))


def _never_offered(observed: Observations) -> None:
    observed.offered.clear()
    observed.accepted.clear()


def _told_relayed(observed: Observations) -> None:
    observed.taken[RECIPIENT] = [(PLACE, LETTER.content)]
    observed.told[_id(observed), RECIPIENT] = [(PLACE, "sent")]


def _reported(observed: Observations) -> None:
    observed.told[f"{_id(observed)}r", SENDER] = [(PLACE, "sent")]


def _held(observed: Observations) -> None:
    observed.orders.append((PLACE, Order("hold", _id(observed), PLACE, PLACE)))


def _deleted(observed: Observations) -> None:
    observed.orders.append((PLACE, Order("delete", _id(observed), PLACE, PLACE)))


def _counted_upstream(observed: Observations) -> None:
    observed.mails.append((PLACE, None))


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
    tmp_path: Path, observed: Observations, broken: Callable[[Observations], None], verdict: str
) -> None:
    broken(observed)

    with pytest.raises(Violation, match=verdict):
        judge(tmp_path, observed, RealDisk())


def test_what_was_learned_later_obliges_nobody_earlier(tmp_path: Path, observed: Observations) -> None:
    _told_relayed(observed)
    _held(observed)
    _counted_upstream(observed)

    judge(tmp_path, observed.until(PLACE - 1), RealDisk())


def test_an_order_that_was_not_answered_yet_may_be_done_or_not(
    tmp_path: Path, observed: Observations
) -> None:
    observed.orders.append((PLACE, Order("hold", _id(observed), PLACE, PLACE + 1)))

    assert observed.until(PLACE).obligations() == [PLACE]
    judge(tmp_path, observed.until(PLACE), RealDisk())


def test_what_was_known_at_a_cut_is_known_to_the_next_run(tmp_path: Path, observed: Observations) -> None:
    _lost(observed)
    known = observed.until(PLACE).at_the_beginning()

    assert known.until(0) == known
    with pytest.raises(Violation, match="accepted, and lost"):
        judge(tmp_path, known, RealDisk())


def _publish(folder: Path, queue_id: QueueId, content: bytes) -> None:
    spool = MaildirSpool(str(folder / "spool"), RealDisk(), FakeClock())
    envelope = Envelope("", (SENDER,), START_WALL_NS, "local", "h", "local")
    recover(spool)
    assert spool.publish_report(queue_id, envelope, content)
    spool.close()


def _warning(observed: Observations) -> bytes:
    message, waits = _reported_as(observed, Action.DELAYED)
    return delay_warning(message, waits, hostname="h", at_ns=START_WALL_NS, will_retry_until_ns=START_WALL_NS)


def _reported_as(observed: Observations, action: Action) -> tuple[ReportedMessage, list[Failure]]:
    envelope = Envelope(SENDER, LETTER.recipients, START_WALL_NS, "unknown[127.0.0.1]", "c", "ESMTP")
    message = ReportedMessage(QueueId(_id(observed)), envelope, b"Subject: 0\r\n")
    return message, [Failure(RECIPIENT, "4.4.7", action, None, None, START_WALL_NS, Reason.EXPIRED)]


def test_who_only_waits_may_be_warned_of(tmp_path: Path, observed: Observations) -> None:
    _publish(tmp_path, warning_id(QueueId(_id(observed))), _warning(observed))

    assert judge(tmp_path, observed, RealDisk()).found == 2


def test_who_was_never_refused_may_not_be_reported(tmp_path: Path, observed: Observations) -> None:
    message, fails = _reported_as(observed, Action.FAILED)
    report = final_report(message, fails, hostname="h", at_ns=START_WALL_NS)
    _publish(tmp_path, report_id(message.queue_id), report)

    with pytest.raises(Violation, match="never failed"):
        judge(tmp_path, observed, RealDisk())


def test_a_warning_is_no_report(tmp_path: Path, observed: Observations) -> None:
    observed.taken[SENDER] = [(PLACE, _warning(observed))]
    observed.refused[RECIPIENT] = [(PLACE, "550 5.1.1 nobody")]
    shutil.rmtree(tmp_path / "spool" / "new")

    with pytest.raises(Violation, match="accepted, and lost"):
        judge(tmp_path, observed, RealDisk())
