"""What became of a queued message, as records in the sender's stream and in a checkpoint.  No I/O.

| kind | says | payload |
| --- | --- | --- |
| `S` | what became of a message | JSON, as below |
| `F`, `A` | it ended; it was set aside in corrupt/ | |

In the JSON, `marks` has recipients by status byte, `told` has recipients, `held` and `warned` are booleans,
`next` is an instant, and `notes` says why recipients failed, until a report told of them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from relay.mail.dsn import Note
from relay.mail.envelope import QueueId
from relay.spool.interface import Message, Status
from relay.spool.log.record import Record

FACTS = b"S"
ENDED = b"F"
ASIDE = b"A"
ENDS = frozenset({ENDED, ASIDE})


class Facts:
    """What became of one message so far; most messages have no Facts."""

    __slots__ = ("is_held", "is_warned", "next_attempt_at_ns", "notes", "statuses", "told")

    def __init__(self) -> None:
        self.statuses: dict[int, Status] = {}
        self.told: set[int] = set()
        self.is_held = self.is_warned = False
        self.next_attempt_at_ns: int | None = None
        self.notes: dict[int, Note] = {}
        """The last note about each recipient of which no report told."""

    def apply(self, new: Mapping[str, Any]) -> None:
        for mark, indices in new.get("marks", {}).items():
            self.statuses |= dict.fromkeys(indices, Status(mark.encode()))
        self.told.update(new.get("told", ()))
        notes = {note["index"]: Note(**note) for note in new.get("notes", ())}
        self.notes |= {index: note for index, note in notes.items() if index not in self.told}
        for index in new.get("told", ()):
            self.notes.pop(index, None)
        self.is_held = new.get("held", self.is_held)
        self.is_warned = new.get("warned", self.is_warned)
        self.next_attempt_at_ns = new.get("next", self.next_attempt_at_ns)

    def as_json(self) -> dict[str, Any]:
        return as_json(
            self.statuses,
            self.notes.values(),
            told=sorted(self.told),
            held=self.is_held,
            warned=self.is_warned,
            next=self.next_attempt_at_ns,
        )

    def laid_over(self, message: Message) -> Message:
        """Return a message with these facts applied."""
        after = message.after(self.statuses)._replace(
            told=frozenset(self.told),
            is_held=self.is_held,
            is_warned=self.is_warned,
            next_attempt_at_ns=self.next_attempt_at_ns,
        )
        return after.with_notes(note for _, note in sorted(self.notes.items())) if self.notes else after


def as_json(marks: Mapping[int, Status], notes: Iterable[Note], **more: object) -> dict[str, Any]:
    """Return the facts as JSON, without keys whose value is empty or false."""
    by_mark: dict[str, list[int]] = {}
    for index, status in marks.items():
        by_mark.setdefault(status.value.decode(), []).append(index)
    new = {"marks": by_mark, "notes": [asdict(note) for note in notes], **more}
    return {key: value for key, value in new.items() if value}


def facts_record(queue_id: QueueId, facts: Mapping[str, Any]) -> Record:
    return Record(FACTS, queue_id, json.dumps(facts, separators=(",", ":")).encode())
