"""The client in front: it hands letters over and remembers what got 250.  Written from RFC 5321 alone."""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import BinaryIO, Self

from tests.proofs.peers.hostile.words import Letter

PATIENCE_S = 20.0
CONNECT_EACH_S = 0.02


class Client:
    """One after the other; what got no 250 counts as never handed over, and is not handed over again."""

    def __init__(
        self, port: int, letters: Iterator[Letter], know: Callable[[Letter], None], pause_s: float
    ) -> None:
        self.acknowledged: dict[int, set[int]] = {}
        """By letter, which of its recipients."""
        self.attempted: dict[int, Letter] = {}
        self.refused: list[str] = []
        """What the relay refused."""
        self._port = port
        self._letters = letters
        self._know = know
        self._pause_s = pause_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="client")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def _feed(self) -> None:
        for letter in self._letters:
            if self._is_over.is_set():
                return
            self.attempted[letter.number] = letter
            self._know(letter)
            try:
                with self._connected() as line:
                    self._hand_over(line, letter)
            except OSError:
                pass  # the relay was killed meanwhile, and may have the letter or not
            self._is_over.wait(self._pause_s * random.Random(letter.number).random() * 2)

    def _connected(self) -> socket.socket:
        """Wait for a relay that listens.  Raises OSError once this client stops."""
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self._port), PATIENCE_S)
            except OSError:
                if self._is_over.wait(CONNECT_EACH_S):
                    raise

    def _hand_over(self, line: socket.socket, letter: Letter) -> None:
        replies = line.makefile("rb")

        def ask(command: str) -> str:
            if command:
                line.sendall(command.encode() + b"\r\n")
            return _reply(replies)

        ask("")
        ask("EHLO front.test")
        parameters = (" BODY=8BITMIME" if letter.needs_8bit else "") + (
            " SMTPUTF8" if letter.needs_utf8 else ""
        )
        if not self._expect(ask(f"MAIL FROM:<{letter.sender}>{parameters}"), letter):
            return
        accepted = {
            each.index for each in letter.recipients if self._expect(ask(f"RCPT TO:<{each.address}>"), letter)
        }
        if not accepted or not ask("DATA").startswith("354"):
            return
        stuffed = letter.content.replace(b"\r\n.", b"\r\n..")
        line.sendall(stuffed + b".\r\n")
        if self._expect(_reply(replies), letter):
            self.acknowledged[letter.number] = accepted
            ask("QUIT")

    def _expect(self, reply: str, letter: Letter) -> bool:
        if not reply.startswith("25"):
            self.refused.append(f"{letter.number}: {reply}")
            return False
        return True


def _reply(replies: BinaryIO) -> str:
    """Return a whole reply; raises OSError where the connection ends instead."""
    lines = []
    while True:
        line = replies.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the relay hung up")
        lines.append(line.decode("utf-8", "replace").rstrip())
        if line[3:4] != b"-":
            return " / ".join(lines)
