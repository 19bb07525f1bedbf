"""A login at an upstream, step by step, and one test message where that is asked for.

Guarantees: what is charged for mail is charged here: a connection by the limits that count connections, the
test message by all, reserved on disk before MAIL; without a message there is no MAIL.  A slot whose
transaction may still be counted stays charged until its deadline, as anybody's.
Does not: judge the upstream, or change whether the relay uses it.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import partial
from typing import NamedTuple

from relay.clock import SECOND_NS, Clock
from relay.mail.envelope import Envelope, Shape
from relay.policy.lane import sorter_of
from relay.policy.model import Policy
from relay.sender.connections import Logins, NoRoomToConnect, open_with_slot
from relay.sender.delivery import Overslept, WholeContent, check_in_time
from relay.sender.throttle_thread import ThrottleThread
from relay.smtp.reply import Phase
from relay.throttle.admission import request_for
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection, UpstreamUnavailable
from relay.upstream.transaction import Transaction
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

_STEP_OF = {Phase.CONNECT: "connect", Phase.EHLO: "ehlo", Phase.STARTTLS: "tls", Phase.AUTH: "login"}


class ProbeStep(NamedTuple):
    name: str
    duration_ns: int
    text: str
    is_good: bool = True


class ProbeEnd(NamedTuple):
    is_good: bool
    is_refused: bool = False
    """The upstream, or the token server, refused the account: a person has to act."""
    is_untrusted: bool = False
    """Its certificate was not trusted."""


GOOD = ProbeEnd(is_good=True)
LATER = ProbeEnd(is_good=False)


@dataclass(frozen=True, slots=True)
class TestMessage:
    reverse_path: str
    recipient: str


class LoginProbe:
    """Goes once through all steps; `tell` is called with each as it is done."""

    def __init__(
        self,
        policy: Policy,
        logins: Logins,
        throttle: ThrottleThread,
        clock: Clock,
        tell: Callable[[ProbeStep], None],
    ) -> None:
        self._policy = policy
        self._logins = logins
        self._throttle = throttle
        self._clock = clock
        self._tell = tell
        self._since_ns = clock.boottime_ns()
        self._is_begun = False

    async def run(self, message: TestMessage | None, hostname: str) -> ProbeEnd:
        """Return what came of it.  Raises HistoryError."""
        try:
            connection = await open_with_slot(
                self._throttle, self._logins, self._clock, lambda _: None, self._done
            )
        except UpstreamUnavailable as unavailable:
            return self._failed(unavailable)
        except NoRoomToConnect as full:
            self._done("slot", f"no room in {full}: nothing was opened", is_good=False)
            return LATER
        try:
            return GOOD if message is None else await self._send(connection, message, hostname)
        finally:
            await connection.close()
            self._done("quit", "closed")

    async def _send(self, connection: Connection, message: TestMessage, hostname: str) -> ProbeEnd:
        now_ns = self._clock.wall_ns()
        content = _content(message, hostname, now_ns)
        envelope = Envelope(
            message.reverse_path, (message.recipient,), now_ns, "relay probe", hostname, "ESMTP"
        )
        lane = (
            sorter_of(self._policy.lanes, ()).sort(envelope, lambda: content).lane
            if self._policy.lanes
            else ""
        )
        (reservation,) = await self._throttle.reserve([request_for(envelope, (0,), 1, lane, len(content))])
        if not isinstance(reservation, Reservation):
            self._done("slot", f"no room in {reservation.limit_label}: no message was sent", is_good=False)
            return LATER
        # It ends before its slot may be given to another, as `relay.sender.delivery` has it.
        longest_ns = reservation.deadline_ns - self._clock.boottime_ns()
        is_over = False
        try:
            if longest_ns <= 0:
                raise Overslept
            outcome = await connection.transact(
                Transaction(
                    message.reverse_path,
                    (message.recipient,),
                    Shape(len(content), eight_bit=False, smtputf8=False),
                    lambda: WholeContent(content, partial(check_in_time, reservation, self._clock)),
                    longest_ns,
                )
            )
            is_over = outcome.is_over
        except Overslept:
            connection.abort()
            text = "this host was suspended in a transaction: no message was sent"
            self._done("message", text, is_good=False)
            return LATER
        finally:
            # Crash here, or cut off: it may be counted yet, so its slot stays charged until its deadline.
            if is_over:
                self._throttle.ended(reservation)
        (answer,) = outcome.answers
        self._done("message", answer.text, is_good=answer.verdict is Verdict.RELAYED)
        return _end(answer)

    def _failed(self, unavailable: UpstreamUnavailable) -> ProbeEnd:
        answer = unavailable.answer
        name = _STEP_OF.get(answer.phase, str(answer.phase)) if self._is_begun else "token"
        self._done(name, answer.text, is_good=False)
        is_untrusted = isinstance(unavailable.__cause__, ssl.SSLCertVerificationError)
        return _end(answer)._replace(is_untrusted=is_untrusted)

    def _done(self, name: str, text: str, *, is_good: bool = True) -> None:
        now_ns = self._clock.boottime_ns()
        self._is_begun = True
        self._tell(ProbeStep(name, now_ns - self._since_ns, text, is_good))
        self._since_ns = now_ns


def _end(answer: Answer) -> ProbeEnd:
    if answer.verdict is Verdict.RELAYED:
        return GOOD
    return ProbeEnd(is_good=False, is_refused=answer.verdict in {Verdict.STOP, Verdict.BOUNCE})


def _content(message: TestMessage, hostname: str, at_ns: int) -> bytes:
    date = format_datetime(datetime.fromtimestamp(at_ns // SECOND_NS, UTC))
    lines = (
        f"From: <{message.reverse_path}>",
        f"To: <{message.recipient}>",
        "Subject: relay probe",
        f"Date: {date}",
        f"Message-ID: <{at_ns}.probe@{hostname}>",
        "Auto-Submitted: auto-generated",
        "",
        f"An operator of {hostname} asked for this message, to see that mail goes through this account.",
    )
    return "".join(f"{line}\r\n" for line in lines).encode()
