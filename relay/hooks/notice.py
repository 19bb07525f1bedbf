"""What a hook is told: one JSON object for each event, made of the events of the log.  Pure.

The keys of `Notice.told` are an interface: they stay, each is always there, and null is "none".
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from relay.mail.formats import Value
from relay.policy.hook import HookEvent
from relay.verdicts.decision import Fate

MOST_RECIPIENTS = 50
"""In one notice; a failed message with more of them makes several."""
LONGEST_TEXT = 500
"""Characters of a reply or a reason."""

_EVENTS = {
    "upstream_paused": HookEvent.PAUSED,
    "upstream_stopped": HookEvent.STOPPED,
    "upstream_resumed": HookEvent.RESUMED,
    "operator_paused": HookEvent.PAUSED,
    "sender_paused": HookEvent.SENDER_PAUSED,
    "route_diverted": HookEvent.ROUTE_DIVERTED,
    "route_down": HookEvent.ROUTE_DOWN,
    "route_restored": HookEvent.ROUTE_RESTORED,
}
_FATES = {Fate.BOUNCED.value: HookEvent.BOUNCED, Fate.EXPIRED.value: HookEvent.EXPIRED}
HEARD = ("delivery", *_EVENTS)
"""The events of the log of which some are told."""
_ID = re.compile(r"notice_[0-9]{20}_[0-9a-f]{8}\Z")


class EventHeard(NamedTuple):
    """An event of the log that may be told."""

    event: HookEvent
    fields: Mapping[str, Value]
    at: str

    @property
    def subject(self) -> tuple[object, ...]:
        """Return what events of one notice share."""
        names = ("queue_id", "upstream", "reverse_path")
        return self.event, *(self.fields.get(name) for name in names)


@dataclass(frozen=True, slots=True)
class Notice:
    notice_id: str
    """The same whenever it is told, so that a receiver can drop repeats; sorts by time."""
    event: HookEvent
    content: bytes
    """JSON, the same octets each time: they are signed."""


def event_of(name: str, fields: Mapping[str, Value]) -> HookEvent | None:
    """Return what a hook calls an event of the log, or None where it is not told."""
    return _FATES.get(str(fields["status"])) if name == "delivery" else _EVENTS.get(name)


def notice_id(at_ns: int, chance: str) -> str:
    """`chance` is eight hexadecimal digits."""
    return f"notice_{at_ns:020}_{chance}"


def is_notice_id(text: str) -> bool:
    return _ID.match(text) is not None


def told_together(heard: Iterable[EventHeard]) -> Iterator[list[EventHeard]]:
    """Yield the events of each notice: the failed recipients of one settlement are told as one."""
    for subject, group in groupby(heard, key=lambda each: each.subject):
        events = list(group)
        step = MOST_RECIPIENTS if subject[0] in _FATES.values() else 1
        yield from (events[index : index + step] for index in range(0, len(events), step))


def notice_of(told: list[EventHeard], notice_id: str, host: str) -> Notice:
    """Return the notice of events that are told together; `host` is our own name."""
    event, fields, at = told[0]
    is_failure = event in _FATES.values()
    value = {
        "event": event.value,
        "id": notice_id,
        "at": at,
        "host": host,
        "upstream": fields.get("upstream") or None,
        "queue_id": fields.get("queue_id"),
        "message_id": fields.get("message_id"),
        "sender": fields.get("reverse_path"),
        "recipients": [_recipient(each.fields) for each in told] if is_failure else [],
        "reason": _cut(_reason(fields)),
        "until_at": fields.get("until_at"),
        "routes": fields.get("routes"),
        "instead_of": fields.get("instead_of"),
    }
    return Notice(notice_id, event, json.dumps(value).encode())


def read_notice(content: bytes) -> Notice:
    """Return a notice as `Notice.content` has it.  Raises ValueError for what is none of ours."""
    value: Any = json.loads(content)
    if not isinstance(value, dict) or not is_notice_id(str(value.get("id"))):
        raise ValueError("not a notice")
    return Notice(value["id"], HookEvent(str(value.get("event"))), content)


def _reason(fields: Mapping[str, Value]) -> Value:
    by = fields.get("by")
    return fields.get("reason", fields.get("because")) if by is None else f"relay pause, by {by}"


def _recipient(fields: Mapping[str, Value]) -> dict[str, Value]:
    return {
        "recipient": fields["recipient"],
        "status": fields["dsn"],
        "code": fields["code"],
        "reply": _cut(fields["text"]),
    }


def _cut(value: Value) -> Value:
    return value[:LONGEST_TEXT] if isinstance(value, str) else value
