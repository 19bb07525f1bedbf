"""Inputs that once broke a law, by target: run every time, and where every search begins."""

import json

from relay.clock import SECOND_NS
from relay.throttle.history_format import At, group, header
from tests.fuzz import history


def _note(**changed: object) -> bytes:
    facts = {
        "index": 0,
        "status": "5.1.1",
        "reason": "bounced",
        "diagnostic": None,
        "remote": None,
        "at_ns": 7,
    }
    return b"\0" + json.dumps(facts | changed).encode() + b"\n"


def _history(*records: bytes) -> bytes:
    return b"\0" + header(history.BOOTS[0]) + group(At(history.NOW_NS, 7), []) + b"".join(records)


REGRESSIONS: dict[str, dict[str, bytes]] = {
    "checkpoint": {
        "a note of a recipient that was told of": b"\1\2" + bytes(3) + b"\2\0\0\0\1\0\0\0" + b"\2\0\0\1",
    },
    "history": {
        "a group at the edge of the skew": b"\0"
        + header(history.BOOTS[0])
        + group(At(history.NOW_NS + SECOND_NS, 7), [history.charged(1, history.NOW_NS, 1)]),
        "a weight below zero, which made room": _history(
            group(At(history.NOW_NS, 7), [history.charged(1, history.NOW_NS, -5)])
        ),
        "beginnings of groups that are all looked at to the end": _history(b"00000000 [[1,2,3]]\n" * 1000),
    },
    "listener_session": {
        "a control character ahead of too much, judged by the cut": b"\0\x10\0"
        + b"x" * 3000
        + b"\r\nNOOP\r\n",
    },
    "notes": {
        "brackets without end": b"\0" + b"[" * 100_000,
        "an index that is none": _note(index=[]),
        "indices that cannot be sorted": _note(index="1") + _note()[1:],
        "a reason that no report has a title for": _note(reason="moved"),
        "a diagnostic that is no text": _note(diagnostic=550),
    },
    "replies": {
        "more whole replies at once than one may be long": b"\0\x7f"
        + b"250 ok, and some more of it\r\n" * 2000,
    },
    "marks": {"recipients without a message": b"\0\0\0xTa@example.com\nTT@example.com\n"},
}
