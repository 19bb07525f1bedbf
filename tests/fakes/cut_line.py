"""A TCP proxy on a loopback port, in threads. It can cut connections at a chosen octet string."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self


class CutLine:
    """The proxy; it runs while its context lasts."""

    def __init__(self, port: int) -> None:
        """Forward to this port of this host."""
        self._to = port
        self._cut_at: bytes | None = None
        self._after, self._is_passed_on = 0, True
        self._is_over = threading.Event()
        self.delay_s = 0.0
        """Delay of everything that goes to the server."""
        self.before: Callable[[], None] = lambda: None
        """Called before anything goes to the server."""
        self.cuts = 0
        """The number of cuts so far."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: set[socket.socket] = set()

    def cut(self, to: bytes = b"", *, after: int = 0, is_passed_on: bool = True) -> None:
        """Cut the connection at the next chunk to the server that contains `to`, after `after` such chunks.

        With `is_passed_on`, the server gets that chunk and its reply is lost. Otherwise the chunk is lost.
        """
        self._cut_at, self._after, self._is_passed_on = to, after, is_passed_on

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, name="line", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._listening.close()
        for each in list(self._open):
            _cut(each)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    client.close()
                    continue
                self._open |= {client, server}
                threading.Thread(target=self._pass_on, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_to_server: bool) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                self._is_over.wait(self.delay_s if is_to_server else 0)
                if is_to_server:
                    self.before()
                if is_to_server and self._is_now(content):
                    self.cuts += 1
                    _cut(source)
                    if self._is_passed_on:
                        target.sendall(content)
                    break
                target.sendall(content)
        for each in (source, target):
            _cut(each)
        self._open -= {source, target}

    def _is_now(self, content: bytes) -> bool:
        if self._cut_at is None or self._cut_at not in content:
            return False
        self._after -= 1
        if self._after < 0:
            self._cut_at = None
        return self._after < 0


def _cut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()
