"""What goes over the socket in a spool's folder where a running relay is asked: `control.sock`, mode 0600.

HTTP over a unix socket: `GET /snapshot`, `GET /policy`, `GET /queue/ID`, `GET
/queue/ID/content`, `POST /queue/VERB` with ids, `POST /listing` (a line of JSON per message) and `POST
/summary` with what is wanted, `POST /plan?path=PATH` with the text of a policy, `POST /upstreams/NAME/VERB`.
Values go over the wire as they are in `relay.status`, in nanoseconds, without what has its default; fields
may be added with a default, so that a command line and a relay of different versions understand each other;
but a filter that a relay does not know is an error.

`server` is the relay's end.  `client` is the command line's: it imports no server, so that verbs start fast.
For the same reason values are written and read by what is below, and not by pydantic: loading that, and
having it compile these types, takes longer than all else that a verb does.
"""

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from relay.status.filters import By, Filters

Value = TypeVar("Value")
_Read = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    path: Path
    """Of the file that it is of, absolute; by now the file may hold something else."""
    text: str
    """As a policy file would say it, with absolute paths."""


@dataclass(frozen=True, slots=True)
class SummaryWanted:
    filters: Filters
    by: By
    limit: int | None = None


def encode(value: object) -> bytes:
    """Return dataclasses, and what they are made of, as JSON on one line."""
    return json.dumps(value, default=_plain, separators=(",", ":")).encode("ascii")


def _plain(value: Any) -> object:
    match value:
        case Path():
            return str(value)
        case Mapping():
            return dict(value)
        case _:
            pairs = ((each, getattr(value, each.name)) for each in fields(value))
            return {each.name: its for each, its in pairs if its != each.default}


def decode(kind: Callable[..., Value], content: str | bytes, *, is_exact: bool = False) -> Value:
    """Return what `encode` wrote.  Raises ValueError for anything else.

    `is_exact`: a field that the kind does not have is an error, else it is passed over.  A relay has to
    refuse a filter that it does not know: it would take messages that are not meant.
    """
    try:
        value: Value = _reader(kind, is_exact)(json.loads(content))
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"not a {kind}") from error
    return value


@cache
def _reader(kind: Any, is_exact: bool) -> _Read:  # noqa: FBT001 - a key of the cache
    """Return what takes a value of JSON for one of a kind, or raises what `decode` expects."""
    kind = getattr(kind, "__supertype__", kind)  # of a NewType
    if (origin := get_origin(kind)) is not None:
        return _reader_of_parts(origin, get_args(kind), is_exact=is_exact)
    if is_dataclass(kind):
        readers = {name: _reader(its, is_exact) for name, its in get_type_hints(kind).items()}
        return partial(_take_fields, kind, readers, is_exact)
    if issubclass(kind, enum.Enum | Path):
        return partial(kind)
    return partial(_take, kind)


def _reader_of_parts(origin: Any, parts: tuple[Any, ...], *, is_exact: bool) -> _Read:
    if origin is Literal:
        return lambda value: parts[parts.index(value)]
    readers = [_reader(each, is_exact) for each in parts if each not in (Ellipsis, NoneType)]
    if origin in (Union, UnionType):
        (read,) = readers
        return lambda value: None if value is None else read(value)
    if issubclass(origin, Mapping):
        read_key, read_its = readers
        return lambda value: {read_key(key): read_its(its) for key, its in value.items()}
    return lambda value: origin(map(readers[0], _take(list, value)))


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
