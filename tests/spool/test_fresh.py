"""What was just read is kept in memory, within its bounds, and is never the only place of anything."""

import pytest

from relay.envelope import QueueId
from relay.spool import fresh
from relay.spool.files import Opened, describe, read
from relay.spool.fresh import Fresh
from tests.spool.engine import ENVELOPE, accept, recovered, taken
from tests.spool.maildir_engine import on_the_model

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


@pytest.mark.parametrize(("bound", "most"), [("MOST", 3), ("MOST_BYTES", 3 * len(CONTENT))])
def test_as_much_is_kept_as_there_is_room_for_and_what_is_taken_makes_room(
    bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, bound, most)
    messages, kept = opened(5), Fresh()
    room = [kept.has_room]
    for message in messages:
        kept.keep(message)
        room.append(kept.has_room)
    assert room == [True, True, True, False, False, False]
    assert [kept.pop(each.queue_id) for each in messages] == [*messages[:3], None, None]

    room = []
    for message in messages[:4]:
        kept.keep(messages[4])
        kept.pop(messages[4].queue_id)
        room.append(kept.has_room)
        kept.keep(message)
    assert room == [True, True, True, False]


def test_a_message_without_content_is_not_kept() -> None:
    (message,), kept = opened(1), Fresh()
    message.content = None
    kept.keep(message)

    assert kept.pop(message.queue_id) is None
    assert kept.pop(QueueId("0" * 16)) is None


def test_a_foreign_name_is_shown_as_far_as_a_line_has_room() -> None:
    assert describe("x" * 81) == "x" * 80
    assert describe("x\n\x1b") == "x ?"
