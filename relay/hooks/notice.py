"""What a hook is told: one JSON object for each notice, made of an event of the log.  Pure.

The keys are an interface: they stay, each is always there, and null is "none".
"""

from collections.abc import Mapping
from typing import Any

from relay.mail.formats import Value
from relay.policy.model import HookEvent

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


def told_of(name: str, fields: Mapping[str, Value]) -> dict[str, Any] | None:
    """Return what is told of an event of the log, or None where nothing is."""
    is_delivery = name == "delivery"
    event = _FATES.get(str(fields["status"])) if is_delivery else _EVENTS[name]
    if event is None:
        return None
    by = fields.get("by")
    return {
        "event": event,
        "upstream": fields.get("upstream") or None,
        "sender": fields.get("reverse_path"),
        "recipients": [_recipient(fields)] if is_delivery else [],
        "reason": _cut(f"relay pause, by {by}" if by else fields.get("reason", fields.get("because"))),
        **{key: fields.get(key) for key in ("queue_id", "message_id", "until_at", "routes", "instead_of")},
    }


def is_joined(told: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the recipient of another was added: those that fail together share a notice."""
    is_same = all(told[key] == other[key] for key in ("event", "queue_id", "upstream"))
    if not (is_same and other["recipients"] and len(told["recipients"]) < MOST_RECIPIENTS):
        return False
    told["recipients"] += other["recipients"]
    return True


def _recipient(fields: Mapping[str, Value]) -> dict[str, Value]:
    reply = _cut(fields["text"])
    return {"recipient": fields["recipient"], "status": fields["dsn"], "code": fields["code"], "reply": reply}


def _cut(value: Value) -> Value:
    return value[:LONGEST_TEXT] if isinstance(value, str) else value
