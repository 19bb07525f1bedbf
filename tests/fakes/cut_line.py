"""A line to a server that loses what comes back: a proxy on a port of loopback, in threads."""

import contextlib
import socket
import threading
from typing import Self


class CutLine:
    """A context manager."""

    def __init__(self, port: int) -> None:
        """Lead to a port of this host."""
        self._to = port
        self._lost, self._after = b"", 0
        self.cuts = 0
        """How many there were."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: set[socket.socket] = set()

    def lose_reply(self, to: bytes, *, after: int = 0) -> None:
        """Cut the connection on which this goes to the server once more after so many times."""
        self._lost, self._after = to, after

    def cut_all(self) -> None:
        for each in list(self._open):
            _cut(each)

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, name="line", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self.cut_all()

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
                is_meant = is_to_server and self._lost and self._lost in content
                if is_meant and self._after:
                    self._after -= 1
                elif is_meant:
                    self._lost = b""
                    # Nothing that the server says from here on is passed on.
                    source.shutdown(socket.SHUT_RDWR)
                    target.sendall(content)
                    self.cuts += 1
                    return
                target.sendall(content)
        for each in (source, target):
            _cut(each)
        self._open -= {source, target}


def _cut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()
