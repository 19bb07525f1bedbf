"""What goes over the socket in a spool's folder where a running relay is asked: `control.sock`, mode 0600.

HTTP over a unix socket, with one route: `POST /call/METHOD`, a method of `relay.control.operations.Session`
or `policy`, with its arguments as a list of JSON.  The answer is lines of JSON: any number of
`{"part": …}`, messages of a listing or octets of a content as base64, and then `{"result": …}`, or
`{"failed": …}` with a text; without one of these it is not whole.

Values go as they are in `relay.status`, in nanoseconds, without what has its default.  Fields may be added
with a default, so that a command line and a relay of different versions understand each other; but an
argument that a relay does not know is an error.

`server` is the relay's end.  `client` is the command line's: it imports no server, so that verbs start fast.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from relay.mail.envelope import QUEUE_ID_PATTERN, QueueId

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SOCKET_NAME = "control.sock"
RESULTS = dict[QueueId, str]
_PLAIN = (str, bool, dict, list, type(None), RESULTS, dict[str, str])
"""What JSON has itself.  A verb on messages needs no more, and loads no pydantic: that takes 70 ms."""


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    path: Path
    """Of the file that it is of, absolute; by now the file may hold something else."""
    text: str
    """As a policy file would say it, with absolute paths."""


@contextlib.contextmanager
def short_path(spool: Path) -> Iterator[str]:
    """Give a path to the socket while the context lasts.  Raises OSError.

    A path to a unix socket has at most 107 bytes (unix(7)), a spool's may be longer: both ends go through
    `/proc/self/fd/N/`, where N is the opened folder.
    """
    folder = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_NAME}"
    finally:
        os.close(folder)


@cache
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter  # noqa: PLC0415 - see `_PLAIN`

    return TypeAdapter(kind)


def encode(kind: Any, value: object) -> bytes:
    """Return JSON on one line."""
    if kind in _PLAIN:
        return json.dumps(value).encode("ascii")
    return _adapter(kind).dump_json(value, exclude_defaults=True, warnings=False)


def decode(kind: Any, value: object) -> Any:
    """Return what `encode` wrote, of what JSON makes of it.  Raises ValueError for anything else."""
    if kind in _PLAIN:
        if not isinstance(value, get_origin(kind) or kind):
            raise ValueError(f"not a {kind}")
        return value
    return _adapter(kind).validate_python(value)


def encode_arguments(arguments: tuple[object, ...]) -> bytes:
    return b"[%b]" % b",".join(encode(type(each), each) for each in arguments)


def decode_arguments(method: Callable[..., object], content: bytes) -> list[Any]:
    """Return the arguments of a call.  Raises ValueError, also for what this relay would not write itself.

    A relay has to refuse a filter that it does not know: it would take messages that are not meant.
    """
    kinds = [each for each in get_type_hints(method).items() if each[0] not in ("return", "write")]
    given = json.loads(content)
    if not isinstance(given, list) or len(given) > len(kinds):
        raise ValueError("not the arguments of a call")
    arguments = []
    for (name, kind), each in zip(kinds, given, strict=False):
        argument = decode(kind, each)
        if json.loads(encode(kind, argument)) != each:
            raise ValueError("not an argument of this version")
        queue_ids = {"queue_id": [argument], "queue_ids": argument}.get(name, ())
        if not all(QUEUE_ID_PATTERN.match(queue_id) for queue_id in queue_ids):
            raise ValueError("not a queue id")  # it becomes part of a path
        arguments.append(argument)
    return arguments
