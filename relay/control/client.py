"""The protocol of the control socket of a running relay, and the command line's end of it.

`control.sock` in the spool's folder has mode 0600.  It speaks HTTP with one route, `POST /call/METHOD`:
METHOD is one of `relay.control.operations.CALLS`, and its arguments are a JSON object.  The answer is lines
of JSON: `{"value": …}` for each value, and at the end `{"end": ""}` or `{"refused": TEXT}` (a `NotDone`).
Without one of these ends it is incomplete.  Values are those of `relay.status`, without fields that have
their default; octets are base64.  A field may be added with a default, so that a command line and a relay of
different versions understand each other.  But an argument that the relay does not know is an error: a filter
that the relay ignored would select the wrong messages.

Each question has its own connection, by HTTP/1.0, whose answers end with their connection.  The code below
reads HTTP and values itself: http.client, asyncio and pydantic each take longer to load than most answers.
"""

import base64
import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from relay.control.operations import NotDone, Session, Unreachable

SOCKET_NAME = "control.sock"
ANSWER_SECONDS = 120.0
"""How long the command line waits for the next byte."""


class ControlClient(Session):
    def __init__(self, spool: Path) -> None:
        self.spool = spool
        self._open: set[socket.socket] = set()

    def is_up(self) -> bool:
        """Return whether a relay listens.  Raises PermissionError if this user may not connect."""
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), self._connected():
            return True
        return False

    def close(self) -> None:
        """Break off the questions of other threads."""
        for asking in tuple(self._open):
            # Raised for a socket that is no longer connected.
            with contextlib.suppress(OSError):
                asking.shutdown(socket.SHUT_RDWR)

    def ask(self, kind: Any, name: str, **arguments: object) -> Iterator[Any]:
        readers: dict[str, Callable[[Any], Any]] = {"value": _reader(kind), "end": str, "refused": str}
        for line in self._lines(name, encode(arguments)):
            try:
                ((what, said),) = json.loads(line).items()
                value = readers[what](said)
            # RecursionError: a line of brackets nests too deep for json.
            except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
                why = "the answer cannot be read: the relay runs another version; restart it"
                raise Unreachable(why) from error
            if what == "end":
                return
            if what == "refused":
                raise NotDone(value)
            yield value
        raise Unreachable("the answer is incomplete: the relay broke off; see its log")

    def _lines(self, name: str, content: bytes) -> Iterator[bytes]:
        head = f"POST /call/{name} HTTP/1.0\r\nContent-Length: {len(content)}\r\n\r\n"
        try:
            with self._connected() as asking, asking.makefile("rb") as answer:
                asking.sendall(head.encode() + content)
                status = answer.readline().decode(errors="replace").partition(" ")[2].strip()
                while answer.readline().strip():
                    pass
                if not status.startswith("200 "):
                    said = f"{status} {answer.read().decode(errors='replace')}".strip()
                    raise Unreachable(f"the relay answered: {said or 'nothing; try again'}")
                yield from (line for line in answer if line.endswith(b"\n"))
        except OSError as error:
            raise Unreachable(f"the relay did not answer: {error}") from error

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with short_path(self.spool) as path, socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(ANSWER_SECONDS)
            asking.connect(path)
            self._open.add(asking)
            try:
                yield asking
            finally:
                self._open.discard(asking)


@contextlib.contextmanager
def short_path(spool: Path) -> Iterator[str]:
    """Give a path to the socket while the context lasts.  Raises OSError.

    A path to a unix socket has at most 107 bytes (unix(7)), and a spool's path may be longer.  So both ends
    use `/proc/self/fd/N/`, where N is the opened folder.
    """
    folder = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_NAME}"
    finally:
        os.close(folder)


def encode(value: object) -> bytes:
    """Return dataclasses, and the types of their fields, as JSON on one line."""
    return json.dumps(value, default=_plain, separators=(",", ":")).encode("ascii")


def _plain(value: Any) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    pairs = ((each, getattr(value, each.name)) for each in fields(value))
    return {each.name: its for each, its in pairs if its != each.default}


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return a function that makes a value of `kind` from a JSON value."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        readers = {name: _reader(its) for name, its in get_type_hints(kind).items()}
        make: Any = kind
        return lambda value: make(**{
            name: readers[name](its) for name, its in value.items() if name in readers
        })  # fmt: skip
    if origin in (Union, UnionType):
        read = _reader(next(part for part in parts if part is not NoneType))
        return lambda value: None if value is None else read(value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        of_key, of_value = map(_reader, parts)
        return lambda value: {of_key(key): of_value(its) for key, its in value.items()}
    if isinstance(origin, type):
        of_each = _reader(parts[0])
        return lambda value: origin(map(of_each, value))
    if kind is bytes:
        return base64.b64decode
    # A type of JSON and an enum make themselves of a value; a NewType and a Literal leave it as it is.
    return kind if isinstance(kind, type) else lambda value: value
