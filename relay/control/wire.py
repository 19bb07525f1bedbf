"""What goes over the socket in a spool's folder where a running relay is asked: `control.sock`, mode 0600.

HTTP over a unix socket, with one route: `POST /call/METHOD`, a method of `relay.control.operations.Session`
or `policy`, with its arguments as a list of JSON.  The answer is lines of JSON: any number of
`{"part": …}`, messages of a listing or octets of a content, and then `{"result": …}`, or `{"failed": …}`
with a text; without one of these it is not whole.

Values go as they are in `relay.status`, in nanoseconds, without what has its default, octets as base64.
Fields may be added with a default, so that a command line and a relay of different versions understand each
other; but an argument that a relay does not know is an error.

`server` is the relay's end.  `client` is the command line's: it imports no server, so that verbs start fast.
For the same reason values are written and read by what is below, and not by pydantic: loading that, and
having it compile these types, takes longer than all else that a verb does.
"""

import base64
import contextlib
import enum
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from relay.mail.envelope import QUEUE_ID_PATTERN, QueueId

SOCKET_NAME = "control.sock"
_Read = Callable[[Any], Any]


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


def encode(value: object) -> bytes:
    """Return dataclasses, and what they are made of, as JSON on one line."""
    return json.dumps(value, default=_plain, separators=(",", ":")).encode("ascii")


def _plain(value: Any) -> object:
    match value:
        case Path():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case Mapping():
            return dict(value)
        case _:
            pairs = ((each, getattr(value, each.name)) for each in fields(value))
            return {each.name: its for each, its in pairs if its != each.default}


def decode(kind: Any, value: object) -> Any:
    """Return what `encode` wrote, of what JSON makes of it.  Raises ValueError for anything else."""
    return _decoded(kind, value, is_exact=False)


def decode_arguments(method: Callable[..., object], content: bytes) -> list[Any]:
    """Return the arguments of a call.  Raises ValueError, also for a field that their kinds do not have.

    A relay has to refuse a filter that it does not know: it would take messages that are not meant.
    """
    kinds = [kind for name, kind in get_type_hints(method).items() if name not in ("return", "write")]
    arguments = json.loads(content)
    if not isinstance(arguments, list) or len(arguments) > len(kinds):
        raise ValueError("not the arguments of a call")
    return [_decoded(*each, is_exact=True) for each in zip(kinds, arguments, strict=False)]


def _decoded(kind: Any, value: object, *, is_exact: bool) -> Any:
    try:
        return _reader(kind, is_exact)(value)
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"not a {kind}") from error


@cache
def _reader(kind: Any, is_exact: bool) -> _Read:  # noqa: FBT001 - a key of the cache
    """Return what takes a value of JSON for one of a kind, or raises what `_decoded` expects."""
    if kind is QueueId and is_exact:
        return _queue_id  # it becomes part of a path
    kind = getattr(kind, "__supertype__", kind)  # of a NewType
    if (origin := get_origin(kind)) is not None:
        return _reader_of_parts(origin, get_args(kind), is_exact=is_exact)
    if is_dataclass(kind):
        readers = {name: _reader(its, is_exact) for name, its in get_type_hints(kind).items()}
        return partial(_take_fields, kind, readers, is_exact)
    if kind is bytes:
        return partial(base64.b64decode, validate=True)
    if kind is NoneType or not issubclass(kind, enum.Enum | Path):
        return partial(_take, kind)
    return partial(kind)


def _reader_of_parts(origin: Any, parts: tuple[Any, ...], *, is_exact: bool) -> _Read:
    if origin is Literal:
        return lambda value: parts[parts.index(value)]
    if origin in (Union, UnionType):
        plain = tuple(part for part in parts if part in (str, NoneType))
        others = [_reader(part, is_exact) for part in parts if part not in plain]
        (read,) = others or [partial(_take, str)]
        return lambda value: value if isinstance(value, plain) else read(value)
    readers = [_reader(each, is_exact) for each in parts if each is not Ellipsis]
    if issubclass(origin, Mapping):
        read_key, read_its = readers
        return lambda value: {read_key(key): read_its(its) for key, its in value.items()}
    # Of a protocol such as Sequence a tuple.
    made = origin if issubclass(origin, list | tuple) else tuple
    return lambda value: made(map(readers[0], _take(list, value)))


def _queue_id(value: str) -> QueueId:
    if not QUEUE_ID_PATTERN.match(value):
        raise ValueError("not a queue id")
    return QueueId(value)


def _take(kind: Any, value: Any) -> Any:
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise TypeError


def _take_fields(kind: Any, readers: Mapping[str, _Read], is_exact: bool, value: Any) -> Any:  # noqa: FBT001 - see `_reader`
    if is_exact and not value.keys() <= readers.keys():
        raise KeyError
    return kind(**{name: readers[name](its) for name, its in value.items() if name in readers})
