"""What goes over the socket in a spool's folder where a running relay is asked: `control.sock`, mode 0600.

HTTP over a unix socket, with one route: `POST /call/METHOD`, one of `relay.control.operations.CALLS`, with
its arguments as an object.  The answer is lines of JSON: `{"value": …}` for each value, and at the end
`{"end": ""}`, `{"refused": TEXT}` (a `NotDone`) or `{"failed": TEXT}`; without one of these it is not whole.

Values go as they are in `relay.status`, in nanoseconds, without what has its default, octets as base64.
Fields may be added with a default, so that a command line and a relay of different versions understand each
other; but an argument that a relay does not know is an error: a filter would find what was not meant.

The command line reads values by what is below: pydantic takes longer to load than all else that a verb does.
"""

import base64
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

SOCKET_NAME = "control.sock"
_Read = Callable[[Any], Any]


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
    try:
        return _reader(kind)(value)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a {kind}") from error


@cache
def _reader(kind: Any) -> _Read:
    """Return what takes a value of JSON for one of a kind, or raises what `decode` expects."""
    origin, parts = get_origin(kind), get_args(kind)
    if types := _plain_types(kind):
        return lambda value: value if type(value) in types else _raise(TypeError)
    if is_dataclass(kind):
        return _reader_of_fields(kind)
    if origin in (Union, UnionType):
        (read,) = (_reader(part) for part in parts if part is not NoneType)
        return lambda value: None if value is None else read(value)
    if origin is Literal:
        return lambda value: parts[parts.index(value)]
    if origin is not None and issubclass(origin, Mapping):
        read_key, read_its = map(_reader, parts)
        return lambda value: {read_key(key): read_its(its) for key, its in value.items()}
    if origin is not None:
        read = _reader(parts[0])
        return lambda value: origin(map(read, value)) if type(value) is list else _raise(TypeError)
    return partial(base64.b64decode, validate=True) if kind is bytes else partial(kind)


def _plain_types(kind: Any) -> tuple[type, ...]:
    """Return the types that JSON makes of a kind, where these are the kind's own; else nothing."""
    kind = getattr(kind, "__supertype__", kind)  # of a NewType
    if kind is float:
        return float, int
    types = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return types if {str, int, bool, NoneType}.issuperset(types) else ()


def _reader_of_fields(kind: Any) -> _Read:
    hints = get_type_hints(kind)
    plain = {name: types for name, its in hints.items() if (types := _plain_types(its))}
    readers = {name: _reader(its) for name, its in hints.items() if name not in plain}

    def read(value: Mapping[str, Any]) -> Any:
        made = {}
        # A long queue comes through here: no call for a plain value.
        for name, its in value.items():
            if name in plain:
                made[name] = its if type(its) in plain[name] else _raise(TypeError)
            elif name in readers:
                made[name] = readers[name](its)
        return kind(**made)

    return read


def _raise(error: type[Exception]) -> Any:
    raise error
