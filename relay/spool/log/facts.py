"""What became of a queued message after it was accepted: records in the sender's stream, and rows of a checkpoint.

| kind | says | payload |
| --- | --- | --- |
| `S` | what is new about a message | JSON, then notes, a JSON object a line |
| `s` | the same, and no notes before count | |
| `F` | it ended | |
| `A` | it was set aside in corrupt/ | |

Of the JSON: `marks` are recipients by their status bytes, `told` recipients, `held` and `warned` yes or no,
`next` an instant; in a checkpoint `notes` says where those are.  No I/O.
"""

import json
from collections.abc import Mapping
from typing import Any

from relay.spool.interface import Corrupt, Message, Status
from relay.spool.log.layout import SENDER, SegmentName

SAID = b"S"
NOTED_ANEW = b"s"
ENDED = b"F"
ASIDE = b"A"
ENDS = frozenset({ENDED, ASIDE})
NotePlace = tuple[int, int, int]
"""Number of the sender's segment, offset and length of a record."""


class Facts:
    """Of one message; most have none."""

    __slots__ = ("is_held", "is_warned", "next_attempt_at_ns", "notes", "statuses", "told")

    def __init__(self) -> None:
        self.statuses: dict[int, Status] = {}
        self.told: set[int] = set()
        self.is_held = self.is_warned = False
        self.next_attempt_at_ns: int | None = None
        self.notes: list[NotePlace] = []

    def apply(self, said: Mapping[str, Any]) -> None:
        """Take in what is new, but for notes, which stay where they are."""
        for mark, indices in said.get("marks", {}).items():
            self.statuses |= dict.fromkeys(indices, Status(mark.encode()))
        self.told.update(said.get("told", ()))
        self.is_held = said.get("held", self.is_held)
        self.is_warned = said.get("warned", self.is_warned)
        self.next_attempt_at_ns = said.get("next", self.next_attempt_at_ns)

    def is_noted_in(self, name: SegmentName) -> bool:
        return name.stream == SENDER and any(number == name.number for number, _, _ in self.notes)

    def as_json(self) -> dict[str, Any]:
        known: dict[str, Any] = {
            "marks": by_mark(self.statuses),
            "told": sorted(self.told),
            "held": self.is_held,
            "warned": self.is_warned,
            "next": self.next_attempt_at_ns,
            "notes": self.notes,
        }
        return {key: value for key, value in known.items() if value}

    def laid_over(self, message: Message) -> Message:
        """Return a message as it is now.  Raises Corrupt."""
        statuses = list(message.statuses)
        if any(index >= len(statuses) for index in (*self.statuses, *self.told)):
            raise Corrupt("what became of a recipient that it does not have")
        for index, status in self.statuses.items():
            statuses[index] = status
        return message._replace(
            statuses=tuple(statuses),
            told=frozenset(self.told),
            is_held=self.is_held,
            is_warned=self.is_warned,
            next_attempt_at_ns=self.next_attempt_at_ns,
        )


def of_message(message: Message) -> dict[str, Any]:
    """Return all that became of a message of another spool, but for its notes."""
    facts = Facts()
    facts.statuses = {i: status for i, status in enumerate(message.statuses) if status is not Status.TODO}
    facts.told, facts.is_held, facts.is_warned = set(message.told), message.is_held, message.is_warned
    facts.next_attempt_at_ns = message.next_attempt_at_ns
    return facts.as_json()


def by_mark(marks: Mapping[int, Status]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, status in marks.items():
        found.setdefault(status.value.decode(), []).append(index)
    return found


def encode(said: Mapping[str, Any], notes: bytes = b"") -> bytes:
    return json.dumps(said, separators=(",", ":")).encode() + b"\n" + notes


def decode(payload: bytes) -> tuple[dict[str, Any], bytes]:
    said, _, notes = payload.partition(b"\n")
    return json.loads(said), notes
