"""What was just read is kept in memory, within its bounds, and is never the only place of anything."""

import pytest

from relay.mail.envelope import QueueId
from relay.spool.message import recent
from relay.spool.message.files import read
from relay.spool.message.message_file import Opened
from relay.spool.message.recent import Recent
from relay.spool.root.quarantine import describe
from tests.unit.spool.engine import ENVELOPE, accept, recovered, taken
from tests.unit.spool.maildir_engine import on_the_model

CONTENT = b"0123456789"


def opened(count: int) -> list[Opened]:
    """Return so many messages as read, each with its content."""
    engine = on_the_model()
    spool, intake = recovered(engine), engine.intake()
    for _ in range(count):
        accept(intake, ENVELOPE, CONTENT)
    return [
        read(engine.disk, engine.layout.queued(queue_id), queue_id, with_content=True)
        for queue_id in taken(spool, count)
    ]


@pytest.mark.parametrize("bound", ["MOST", "MOST_BYTES"])
def test_as_much_is_kept_as_there_is_room_for(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages, kept = opened(5), Recent()
    monkeypatch.setattr(recent, bound, 3 * (1 if bound == "MOST" else messages[0].header.file_bytes))
    room = [kept.has_room]
    for message in messages:
        kept.keep(message)
        room.append(kept.has_room)
    assert room == [True, True, True, False, False, False]
    assert [kept.whole(each.queue_id) for each in messages] == [*messages[:3], None, None]
    assert [kept.known(each.queue_id) for each in messages] == [*messages[:3], None, None]
    assert [kept.whole(each.queue_id) for each in messages] == [None] * 5

    messages, room = opened(5), []
    for message in messages[:4]:
        kept.keep(messages[4])
        kept.forget(messages[4].queue_id)
        room.append(kept.has_room)
        kept.keep(message)
    assert room == [True, True, True, False]


def test_a_message_without_content_is_not_kept() -> None:
    (message,), kept = opened(1), Recent()
    message.content = None
    kept.keep(message)

    assert kept.whole(message.queue_id) is None
    assert kept.whole(QueueId("0" * 16)) is None


def test_what_changes_is_known_without_its_content() -> None:
    (message,), kept = opened(1), Recent()
    kept.keep(message)

    assert kept.known(message.queue_id) is message
    assert (message.content, kept.whole(message.queue_id)) == (None, None)
    assert kept.known(message.queue_id) is message
    kept.forget(message.queue_id)
    assert kept.known(message.queue_id) is None


def test_those_that_were_known_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "_REMEMBERED", 2)
    messages, kept = opened(3), Recent()
    for message in messages:
        assert kept.remember(message) is message
        assert message.content is None

    assert [kept.known(each.queue_id) for each in messages] == [None, *messages[1:]]


def test_a_foreign_name_is_shown_as_far_as_a_line_has_room() -> None:
    assert describe("x" * 81) == "x" * 80
    assert describe("x\n\x1b") == "x ?"
