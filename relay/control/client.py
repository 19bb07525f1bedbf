"""The `Session` of a relay that runs: the command line's end of the control socket.

A connection for each question.  HTTP/1.0, whose answers end with their connection, so a socket is enough:
http.client, asyncio and aiohttp each take longer to load than most answers.
"""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from relay.control.operations import NotDone, Session, Unreachable
from relay.control.wire import decode, encode, short_path

ANSWER_SECONDS = 120.0
"""How long the command line waits for the next byte."""
_NOT_ALL = "the relay ended its answer in the middle: this is not all; "
_OTHER_VERSION = "the relay is of another version and its answer cannot be read; restart it"
_Kind = TypeVar("_Kind")


class ControlClient(Session):
    def __init__(self, spool: Path) -> None:
        self.spool = spool
        self._open: set[socket.socket] = set()

    def is_up(self) -> bool:
        """Whether a relay listens.  Raises PermissionError where we may not ask."""
        try:
            with self._connected():
                return True
        except (FileNotFoundError, ConnectionRefusedError):
            return False

    def close(self) -> None:
        """Break off what another thread asks."""
        for asking in tuple(self._open):
            # Of a socket that is not connected any more.
            with contextlib.suppress(OSError):
                asking.shutdown(socket.SHUT_RDWR)

    def ask(self, kind: type[_Kind], name: str, **arguments: object) -> Iterator[_Kind]:
        is_begun = False
        for line in self._lines(name, encode(arguments)):
            try:
                ((what, text),) = json.loads(line).items()
                said = decode(kind if what == "value" else str, text)
            except (AttributeError, ValueError) as error:
                raise Unreachable(_OTHER_VERSION) from error
            match what:
                case "value":
                    is_begun = True
                    yield said
                case "end":
                    return
                case "refused":
                    raise NotDone(said)
                case "failed":
                    raise Unreachable((_NOT_ALL if is_begun else "") + said)
                case _:
                    raise Unreachable(_OTHER_VERSION)
        raise Unreachable(f"{_NOT_ALL}see its log")

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
                    raise Unreachable(f"the relay says: {said or 'nothing'}")
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
