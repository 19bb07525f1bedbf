"""Any bytes as notes give notes about recipients from which a report can be written, and no error."""

import json

from relay.mail.dsn import Note
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.mail.report import Reason
from relay.sender.reports import Reporter
from relay.spool.interface import Message, Status
from relay.spool.message import notes
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded

ENVELOPE = Envelope("s@example.org", ("a@example.com", "b@example.com"), 7, "h[192.0.2.1]", "h", "ESMTP")
MESSAGE = Message(
    QueueId("0123456789abcdef"),
    ENVELOPE,
    Shape(12, eight_bit=False, smtputf8=False),
    (Status.BOUNCED, Status.EXPIRED),
    content=b"Subject: x\r\n",
)
VALUES: tuple[object, ...] = (
    *(None, True, 0, 1, -1, 2**70, 1.5, "", "bounced", "\udc80", "a\r\nb", [], {}, ["x"]),
)
KEYS = ("index", "status", "reason", "diagnostic", "remote", "at_ns", "attempts", "more")
TOKENS = [b"\n", b"{", b"}", b'"', b":", b"\0" * 512, b"null", b"[" * 40, b'"index":1']


def line(**changed: object) -> bytes:
    known = {
        "index": 0,
        "status": "5.1.1",
        "reason": "bounced",
        "diagnostic": "550 no",
        "remote": "h",
        "at_ns": 7,
    }
    return json.dumps(known | changed).encode() + b"\n"


def nearly_valid(choices: Choices) -> bytes:
    lines = []
    for _ in range(choices.number(6)):
        changed: dict[str, object] = {
            "index": choices.number(3),
            "reason": choices.pick(("bounced", "expired", "operator", "deferred")),
            "diagnostic": choices.text(),
        }
        if choices.yes():
            changed[choices.pick(KEYS)] = choices.pick(VALUES)
        lines.append(line(**changed))
    return choices.spoiled(b"".join(lines), TOKENS)


def target(raw: bytes) -> None:
    choices = Choices(raw)
    content = nearly_valid(choices) if choices.yes() else choices.rest()
    with bounded(500 + 50 * content.count(b"\n")):
        found = notes.latest(content)
    assert [note.index for note in found] == sorted({note.index for note in found})
    assert notes.latest(notes.encode(found)) == found

    ours = Note(1, "5.1.1", Reason.BOUNCED.value, "550 no", None, 7)
    by_index = {note.index: note for note in found}
    known = notes.latest(content + notes.encode([ours]))
    assert {note.index: note for note in known} == by_index | {1: ours}
    # No note that was read prevents the report.
    owed = MESSAGE.owed_report
    assert owed is not None
    for each in (known, found):
        assert (
            b"a@example.com" in Reporter("relay.example").report(MESSAGE._replace(notes=each), owed).content
        )


SEEDS = [
    b"\0" + line(),
    b"\1\5" + bytes(range(60)),
    # Each of these once raised an error, or prevented a report.
    b"\0" + b"[" * 100_000,
    b"\0" + line(index=[]),
    b"\0" + line(index="1") + line(),
    b"\0" + line(reason="moved"),
    b"\0" + line(diagnostic=550),
]
