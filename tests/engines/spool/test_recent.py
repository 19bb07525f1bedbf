"""What was just read is kept in memory, within its bounds, and is never the only place of anything."""

import pytest

from relay.spool.message import recent
from relay.spool.message.files import read
from relay.spool.message.message_file import Opened
from relay.spool.message.recent import Recent
from tests.engines.spool.engine import accept, recovered, taken
from tests.engines.spool.maildir_engine import on_the_model


def opened(count: int) -> list[Opened]:
    """Return so many messages as read, each with its content."""
    engine = on_the_model()
    spool, intake = recovered(engine), engine.intake()
    for _ in range(count):
        accept(intake)
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
    kept.forget(messages[0].queue_id)
    assert kept.has_room
