"""The judge sees each kind of broken promise, on a spool in a plain folder."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from relay.listener.received import received_line
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import ENGINES, Engine
from relay.spool.identity import report_id
from relay.spool.interface import Adopted, Message, Status
from tests.engines.lab.judge import judge
from tests.engines.lab.observations import Letter, Observations, Scribe
from tests.engines.spool.world import Violation
from tests.fakes.clock import START_WALL_NS, FakeClock

SENDER, RECIPIENT = "front0@front.test", "ok0-0@list.test"
LETTER = Letter(0, SENDER, (RECIPIENT,), b"Subject: 0\r\n\r\nhello\r\n")


@pytest.fixture(params=[*ENGINES.values()], ids=[*ENGINES])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


@pytest.fixture
def observed(tmp_path: Path, engine: Engine) -> Observations:
    root, disk = str(tmp_path / "spool"), RealDisk()
    engine.prepare(root, disk)
    intake = engine.intake(root, disk, FakeClock())
    draft = intake.draft()
    draft.append(
        received_line(
            helo="c", address="127.0.0.1", hostname="h", protocol="ESMTP", queue_id=draft.queue_id, wall_ns=0
        )
    )
    draft.append(LETTER.content)
    envelope = Envelope(SENDER, LETTER.recipients, START_WALL_NS, "unknown[127.0.0.1]", "c", "ESMTP")
    assert intake.accept([(draft, envelope)]) == [None]
    intake.close()
    known = Observations()
    known.offer(LETTER)
    known.accept(0, draft.queue_id)
    return known


def _id(observed: Observations) -> str:
    return observed.accepted[0]


def test_a_message_as_it_was_handed_over_breaks_no_promise(
    tmp_path: Path, engine: Engine, observed: Observations
) -> None:
    seen = judge(tmp_path, observed, RealDisk(), engine)

    assert +seen == {"found": 1, "TODO": 1}


def _lost(observed: Observations) -> None:
    observed.offer(Letter(1, "front1@front.test", ("ok1-0@list.test",), b"x\r\n"))
    observed.accept(1, "0" * 16)


def _other_content(observed: Observations) -> None:
    observed.offer(replace(LETTER, content=LETTER.content + b"!"))


def _other_envelope(observed: Observations) -> None:
    observed.offer(replace(LETTER, recipients=(*LETTER.recipients, "ok0-1@list.test")))


def _never_offered(observed: Observations) -> None:
    observed.offered.clear()
    observed.accepted.clear()


def _told_relayed(observed: Observations) -> None:
    observed.take(RECIPIENT, LETTER.content)
    observed.tell(_id(observed), RECIPIENT)


def _reported(observed: Observations) -> None:
    observed.tell(f"{_id(observed)}r", SENDER)


def _counted_upstream(observed: Observations) -> None:
    observed.mail()


@pytest.mark.parametrize(
    ("broken", "verdict"),
    [
        (_lost, "accepted, and lost for"),
        (_other_content, "other content"),
        (_other_envelope, "another envelope"),
        (_never_offered, "nobody handed over"),
        (_told_relayed, "is TODO; told"),
        (_reported, "a second one follows"),
        (_counted_upstream, "charged"),
    ],
)
def test_each_broken_promise_is_seen(
    tmp_path: Path,
    engine: Engine,
    observed: Observations,
    broken: Callable[[Observations], None],
    verdict: str,
) -> None:
    broken(observed)

    with pytest.raises(Violation, match=verdict):
        judge(tmp_path, observed, RealDisk(), engine)


def test_what_is_noted_later_obliges_nobody_earlier(tmp_path: Path, observed: Observations) -> None:
    log = tmp_path / "blocks"
    log.write_bytes(b"first")
    scribe = Scribe(log, observed)
    earlier = scribe.place()
    log.write_bytes(b"first and more")
    scribe.note(Observations.mail)
    later = scribe.place()
    scribe.close()

    assert (scribe.known(earlier), scribe.known(later).mails) == (observed, 1)
    assert scribe.obligations() == [later]


def test_a_report_of_somebody_who_never_failed_is_seen(
    tmp_path: Path, engine: Engine, observed: Observations
) -> None:
    envelope = Envelope("", (SENDER,), START_WALL_NS, "local", "", "ESMTP")
    content = b"X: y\r\nFinal-Recipient: rfc822; " + RECIPIENT.encode() + b"\r\nAction: failed\r\n"
    report = Message(
        report_id(QueueId(_id(observed))),
        envelope,
        Shape(len(content), eight_bit=False, smtputf8=False),
        (Status.TODO,),
    )
    with closing(
        engine.spool(str(tmp_path / "spool"), RealDisk(), FakeClock(), lambda _n, _w: None)
    ) as spool:
        spool.adopt([Adopted(report, [content])])

    with pytest.raises(Violation) as caught:
        judge(tmp_path, observed, RealDisk(), engine)

    for verdict in ("a second one follows", "not a whole report", f"reports {RECIPIENT}, which never failed"):
        assert verdict in str(caught.value)
