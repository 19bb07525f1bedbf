"""What a hook is told: one JSON object for each notice, made of the events of the log.  Pure.

The keys are an interface: they stay, each is always there, and null is "none".
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from relay.mail.formats import Value
from relay.policy.hook import HookEvent

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
_FATES = {"bounced": HookEvent.BOUNCED, "expired": HookEvent.EXPIRED}
HEARD = ("delivery", *_EVENTS)
"""The events of the log of which some are told."""


class EventHeard(NamedTuple):
    """An event of the log that is told."""

    event: HookEvent
    fields: Mapping[str, Value]
    at: str


class Notice(NamedTuple):
    notice_id: str
    """The same at each attempt, so that a receiver can drop repeats."""
    event: HookEvent
    content: bytes
    """JSON, the same octets each time: they are signed."""


def event_of(name: str, fields: Mapping[str, Value]) -> HookEvent | None:
    """Return what a hook calls an event of the log, or None where it is not told."""
    return _FATES.get(str(fields["status"])) if name == "delivery" else _EVENTS.get(name)


def notices_of(heard: Iterable[EventHeard], host: str, new_id: Callable[[], str]) -> Iterator[Notice]:
    """Yield the notices of events, each with an id; the failed recipients of one settlement share one."""
    for (event, *_), group in groupby(heard, key=_subject):
        events = list(group)
        step = MOST_RECIPIENTS if event in _FATES.values() else 1
        for start in range(0, len(events), step):
            yield _notice(events[start : start + step], host, new_id())


def _subject(heard: EventHeard) -> tuple[HookEvent, Value, Value]:
    return heard.event, heard.fields.get("queue_id"), heard.fields.get("upstream")


def _notice(told: Sequence[EventHeard], host: str, notice_id: str) -> Notice:
    event, fields, at = told[0]
    by = fields.get("by")
    value = {
        "event": event.value,
        "id": notice_id,
        "at": at,
        "host": host,
        "upstream": fields.get("upstream") or None,
        "queue_id": fields.get("queue_id"),
        "message_id": fields.get("message_id"),
        "sender": fields.get("reverse_path"),
        "recipients": [_recipient(each.fields) for each in told] if event in _FATES.values() else [],
        "reason": _cut(f"relay pause, by {by}" if by else fields.get("reason", fields.get("because"))),
        "until_at": fields.get("until_at"),
        "routes": fields.get("routes"),
        "instead_of": fields.get("instead_of"),
    }
    return Notice(notice_id, event, json.dumps(value).encode())


def _recipient(fields: Mapping[str, Value]) -> dict[str, Value]:
    reply = _cut(fields["text"])
    return {"recipient": fields["recipient"], "status": fields["dsn"], "code": fields["code"], "reply": reply}


def _cut(value: Value) -> Value:
    return value[:LONGEST_TEXT] if isinstance(value, str) else value
