"""A connection to the control socket of the relay that runs on a spool, before it is known what is asked.

A path to a unix socket has at most 107 bytes (unix(7)), a spool's may be longer: both
ends go through `/proc/self/fd/N/`, where N is the opened folder.
"""

import contextlib
import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path

SOCKET_NAME = "control.sock"
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 120.0
"""How long the command line waits for the next byte."""


@contextlib.contextmanager
def short_path(spool: Path) -> Iterator[str]:
    """Give a path of bounded length while the context lasts.  Raises OSError."""
    folder = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_NAME}"
    finally:
        os.close(folder)


class Connection(http.client.HTTPConnection):
    """To the relay on a spool.  All but `break_off` wait, and raise OSError and HTTPException."""

    def __init__(self, spool: Path, answer_seconds: float = ANSWER_SECONDS) -> None:
        super().__init__("relay")
        self._spool, self._answer_seconds = spool, answer_seconds
        self._socket = socket.socket(socket.AF_UNIX)

    def connect(self) -> None:
        self._socket.settimeout(CONNECT_SECONDS)
        with short_path(self._spool) as path:
            self._socket.connect(path)
        self._socket.settimeout(self._answer_seconds)
        self.sock = self._socket

    def ask(self, path: str, content: bytes) -> http.client.HTTPResponse:
        self.request("POST", path, content, {"Connection": "close"})
        return self.getresponse()

    def break_off(self) -> None:
        """Have whoever waits for the relay wait no more."""
        # Of a socket that is not connected, or not any more.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.close()
