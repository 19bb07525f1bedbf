"""Clients that keep handing mail over, whatever happens to the relay meanwhile."""

import itertools
import random
import smtplib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from tests.system.waiting import HANG_S

CLIENTS = 4
PACE_S = 0.05
"""How long a client waits before it connects again, after it was turned away."""
SENDER = "mjd@front.test"
LONG_EVERY = 100
"""One letter in this many is longer than the relay keeps in memory while it arrives."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to hand over; no other has its recipients, so an upstream can tell how often it arrived."""

    number: int
    recipients: tuple[str, ...]
    content: bytes
    sender: str = SENDER

    @property
    def refused(self) -> tuple[str, ...]:
        """Return the recipients that the strict upstream refuses for good."""
        return tuple(each for each in self.recipients if each.startswith("bad"))

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the recipients for which the sender asks for a report of success (RFC 3461)."""
        return tuple(each for each in self.recipients if each.startswith("told"))

    @property
    def silent(self) -> tuple[str, ...]:
        """Return the refused recipients for which the sender asks for no report (RFC 3461)."""
        return tuple(each for each in self.recipients if each.startswith("badsilent"))


def letter(number: int) -> Letter:
    dice = random.Random(number)
    recipients = tuple(f"r{number}.{k}@list.test" for k in range(dice.choice([1, 1, 1, 2, 3])))
    kinds = [b"", b".", b"..", b".dot", b"plain words", "grüße".encode(), b"\xff\x80", b"\t \x01\0"]
    kinds += [b"From here on", b"x" * 900, b"x" * 5000]
    lines = [b"Subject: %d" % number, b"Received: by somebody before us", b""]
    lines += dice.choices(kinds, k=dice.randint(0, 20))
    if number % LONG_EVERY == 7:
        lines += [b"%06d " % line + b"y" * 70 for line in range(4000)]
    return Letter(number, recipients, b"\r\n".join(lines) + b"\r\n")


def asked_or_refused(number: int) -> Letter:
    """Return the letter of this number, with recipients that are refused for good or need another report.

    Every third letter has one that is refused; for some the sender asks for a report of success, or for none.
    """
    plain, rest = letter(number), number % 6
    told = [f"told{number}@list.test"] if rest in (1, 3, 4) else []
    refused = {0: "bad", 2: "badsilent", 3: "bad"}.get(rest)
    more = [f"{refused}{number}@list.test"] if refused else []
    return replace(plain, recipients=(*told, *plain.recipients, *more))


class Feeder:
    """A few clients that hand over one message after the other, until the context ends.

    A message that got no 250 counts as not handed over, as for any client, and is not
    tried again: it may arrive all the same (RFC 1047).
    """

    def __init__(
        self,
        port: int,
        *,
        ahead: int = 100,
        first: int = 0,
        letter: Callable[[int], Letter] = letter,
    ) -> None:
        """`ahead` is how many messages may be handed over before `allow`; `first` is the first number."""
        self.attempted: set[int] = set()
        self.acknowledged: set[int] = set()
        self.turned_away = 0
        """How often a client got no connection, lost it, or was refused."""
        self._port = port
        self._letter = letter
        self._numbers = itertools.count(first)
        self._allowed = self.granted = ahead
        """How many messages may still be handed over, and how many of all."""
        self._more = threading.Condition()
        self._is_stopping = False
        self._threads = [threading.Thread(target=self._feed, name=f"client {n}") for n in range(CLIENTS)]

    def allow(self, more: int) -> None:
        with self._more:
            self.granted += more
            self._allowed += more
            self._more.notify_all()

    def allow_up_to(self, wanted: int) -> None:
        """Let so many messages be handed over in all, without those that were granted before."""
        self.allow(max(0, wanted - self.granted))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._more:
            self._is_stopping = True
            self._more.notify_all()
        for thread in self._threads:
            thread.join()

    def _feed(self) -> None:
        while not self._is_stopping:
            try:
                with smtplib.SMTP("127.0.0.1", self._port, timeout=HANG_S) as session:
                    while self._may_go_on():
                        self._hand_over(session)
            except (OSError, smtplib.SMTPException):
                with self._more:
                    self.turned_away += 1
                    self._more.wait_for(lambda: self._is_stopping, PACE_S)

    def _may_go_on(self) -> bool:
        """Wait until one more message may be handed over; return False once the feeder stops."""
        with self._more:
            self._more.wait_for(lambda: self._is_stopping or self._allowed > 0)
            if self._is_stopping:
                return False
            self._allowed -= 1
            return True

    def _hand_over(self, session: smtplib.SMTP) -> None:
        with self._more:
            each = self._letter(next(self._numbers))
            self.attempted.add(each.number)
        try:
            if each.asked or each.silent:
                _hand_over_asking(session, each)
            else:
                session.sendmail(each.sender, each.recipients, each.content, ["BODY=8BITMIME"])
        except (OSError, smtplib.SMTPException):
            with self._more:
                self._allowed += 1
            raise
        self.acknowledged.add(each.number)


def _hand_over_asking(session: smtplib.SMTP, letter: Letter) -> None:
    notify = {each: ["NOTIFY=SUCCESS,FAILURE"] for each in letter.asked}
    notify |= {each: ["NOTIFY=NEVER"] for each in letter.silent}
    session.ehlo_or_helo_if_needed()
    answers = [session.mail(letter.sender, ["BODY=8BITMIME", "RET=HDRS", f"ENVID={letter.number}"])]
    answers += [session.rcpt(each, notify.get(each, [])) for each in letter.recipients]
    if any(code != 250 for code, _ in answers):
        raise smtplib.SMTPException(answers)
    code, text = session.data(letter.content)
    if code != 250:
        raise smtplib.SMTPDataError(code, text)
