"""Files whose checksums are right and whose facts are none that we write: known for it, and never fatal."""

import json

import pytest

from relay.mail.envelope import Envelope, QueueId
from relay.spool.interface import Corrupt, Note
from relay.spool.maildir import notes_file
from relay.spool.maildir.layout import Layout
from relay.spool.message import message_file
from tests.fakes.disk import ModelDisk

QUEUE_ID = QueueId("0123456789abcdef")
ENVELOPE = Envelope("s@example.org", ("a@example.com",), 7, "h[192.0.2.1]", "h", "ESMTP")
LAYOUT = Layout("/spool")
NOTE = Note(0, "5.1.1", "bounced", "550 no", "smtp.example.net", 7)
DEEP = b"[" * 100_000


def facts(**changed: object) -> bytes:
    written = message_file.encode_envelope(QUEUE_ID, ENVELOPE).split(b"\n")[0]
    return json.dumps(json.loads(written) | changed).encode()


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        facts(reverse_path=None),
        facts(arrival_at_ns=1.5),
        facts(arrival_at_ns=True),
        facts(client=["h"]),
        facts(helo=7),
        facts(protocol={}),
        facts(user=0),
        facts(smtputf8="yes"),
    ],
)
def test_a_fact_of_another_type_makes_a_message_corrupt(line: bytes) -> None:
    tail = line + b"\nTa@example.com\n"
    shape = message_file.shape_of(ENVELOPE, 0, eight_bit=False)
    header = message_file.decode_header(message_file.encode_header(0, tail, 1, shape, 0))

    with pytest.raises(Corrupt, match=r"cannot be read|another type"):
        message_file.decode_envelope(QUEUE_ID, header, tail)


@pytest.mark.parametrize(
    "changed",
    [
        {"index": "0"},
        {"index": []},
        {"index": True},
        {"status": 5},
        {"reason": "moved"},
        {"reason": None},
        {"diagnostic": 550},
        {"remote": {}},
        {"at_ns": "now"},
        {"at_ns": 2**70},
        {"more": 1},
    ],
)
def test_a_note_of_another_type_costs_itself_alone(changed: dict[str, object]) -> None:
    disk = ModelDisk()
    disk.make_directory(LAYOUT.folder("bounce"))
    notes_file.append(disk, LAYOUT, {QUEUE_ID: [NOTE]})
    whole = disk.peek(LAYOUT.notes(QUEUE_ID))
    line = json.dumps(json.loads(whole) | {"index": 1} | changed).encode()
    disk.poke(LAYOUT.notes(QUEUE_ID), line + b"\n" + DEEP + b"\n" + whole)

    assert notes_file.read(disk, LAYOUT, QUEUE_ID) == [NOTE]
