"""Clients that keep handing mail over, whatever happens to the relay meanwhile."""

import itertools
import smtplib
import threading
from types import TracebackType
from typing import Self

from tests.peers.waiting import HANG_S

PACE_S = 0.05
"""Between two messages of one client; also how soon one comes back that was turned away."""


class Feeder:
    """A few clients, each with one message after the other.  A context manager: at its end they stop.

    Each attempt goes to a recipient of its own, so that an upstream can tell which of them
    arrived how often.  A message that got no 250 counts as never handed over, as it does for
    any client: it may arrive all the same (RFC 1047).
    """

    def __init__(self, port: int, *, clients: int = 4) -> None:
        self.attempted: set[str] = set()
        self.acknowledged: set[str] = set()
        self.turned_away = 0
        """How often a client found nobody, or was cut off."""
        self._port = port
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._feed, name=f"client {n}") for n in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _feed(self) -> None:
        while not self._stop.is_set():
            try:
                with smtplib.SMTP("127.0.0.1", self._port, timeout=HANG_S) as session:
                    while not self._stop.wait(PACE_S):
                        self._hand_over(session)
            except (OSError, smtplib.SMTPException):
                self.turned_away += 1
                self._stop.wait(PACE_S)

    def _hand_over(self, session: smtplib.SMTP) -> None:
        number = next(self._numbers)
        recipient = f"r{number}@list.test"
        self.attempted.add(recipient)
        session.sendmail("mjd@front.test", [recipient], f"Subject: {number}\r\n\r\n{number}\r\n")
        self.acknowledged.add(recipient)
