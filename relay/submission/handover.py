"""Opens a session of our listener for the mail of this host, and gives messages to it.

`open_smtp` yields a socket on which the session answers.  If this user owns the spool, the session runs in
this process (`own_session`), and no relay need run.  Otherwise the listener on loopback answers.  Both speak
SMTP, so the rest is the same: `Handover` gives messages, `bridged` lets a program speak SMTP.
Guarantees: `give` returns only after `250`, so the message is durably the relay's.  After Refusal nothing was
queued, unless the connection was lost between the final dot and its reply (`SessionLost.may_be_queued`).
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from relay.mail.dsn import DsnRequest, RecipientRequest
from relay.mail.envelope import Shape
from relay.policy.model import Listen, Policy
from relay.smtp.commands import mail_line, rcpt_line
from relay.smtp.dot_stuffing import DotStuffing
from relay.smtp.reply import MalformedReply, Reply, ReplyParser
from relay.submission.composing import Submission

_CHUNK_BYTES = 64 * 1024
_TAKEN_OFF_BYTES = 1 << 20
_ANSWER_WITHIN_S = 300.0  # RFC 5321, 4.5.3.2
_ON_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to reach a listener on all addresses


class Refusal(Exception):  # noqa: N818 - it is an answer
    """The relay did not take the message, and queued nothing.  `exit_code` is as in sysexits(3)."""

    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class SessionLost(Refusal):
    """The session has ended, so it takes no further message."""

    def __init__(self, why: str) -> None:
        super().__init__(why, os.EX_TEMPFAIL)
        self.may_be_queued = False
        """The final dot was sent, and no reply came."""


_CLOSING = 421
_TOO_MANY = "4.5.3"  # it means: send to the rest later; here a message goes to all recipients or to none


class _Phase(NamedTuple):
    name: str
    exit_code: int
    """For a 5yz reply in this phase."""


_GREETING = _Phase("the greeting", os.EX_UNAVAILABLE)
_SENDER = _Phase("the sender", os.EX_DATAERR)
_RECIPIENT = _Phase("a recipient", os.EX_NOUSER)
_CONTENT = _Phase("the message", os.EX_DATAERR)


@contextmanager
def open_smtp(policy: Policy, hostname: str, tell: Callable[[str], None]) -> Iterator[socket.socket]:
    """Raise Refusal if no session can be had now, OSError, and ValueError for a spool of another format."""
    if _is_own(policy):
        # Imported only here: most callers may not write the spool, and need no listener of their own.
        from relay.spool.interface import SpoolBusy  # noqa: PLC0415 - see above
        from relay.submission.own_session import own_session  # noqa: PLC0415 - see above

        try:
            with own_session(policy, _reachable(policy) or policy.listen[0], hostname, tell) as connected:
                yield connected
        except SpoolBusy as busy:
            raise Refusal(str(busy), os.EX_TEMPFAIL) from busy
        return
    listen = _reachable(policy)
    if listen is None:
        raise Refusal("the policy has no listener on loopback without implicit TLS; add one", os.EX_CONFIG)
    host = _ON_LOOPBACK.get(listen.address.host, listen.address.host)
    try:
        connected = socket.create_connection((host, listen.address.port), _ANSWER_WITHIN_S)
    except OSError as error:
        why = f"the relay does not answer on {listen.address}: {error.strerror or error}"
        raise Refusal(why, os.EX_TEMPFAIL) from error
    with connected:
        yield connected


def _is_own(policy: Policy) -> bool:
    """Return whether this user owns the spool.  Root's files in another user's spool would be set aside."""
    try:
        return policy.spool.stat().st_uid == os.geteuid()
    except OSError:
        return False


def most_bytes(policy: Policy) -> int:
    """Return the longest text worth reading: what a listener takes, and room for what is removed (Bcc)."""
    return max(listen.max_size for listen in policy.listen) + _TAKEN_OFF_BYTES


def _reachable(policy: Policy) -> Listen | None:
    for listen in policy.listen:
        is_here = listen.address.is_loopback or listen.address.host in _ON_LOOPBACK
        if is_here and listen.tls != "implicit":
            return listen
    return None


class Handover:
    """One session, for any number of messages."""

    def __init__(self, connected: socket.socket, hostname: str) -> None:
        """Raise Refusal if the greeting or the reply to EHLO is no success."""
        self._connected = connected
        self._connected.settimeout(_ANSWER_WITHIN_S)
        self._parser = ReplyParser()
        self._expect(_GREETING)
        self._say(f"EHLO {hostname}".encode(), _GREETING)

    def give(self, submission: Submission) -> str:
        """Return the last reply, which names the queue id.  Raises Refusal; SessionLost ends the session."""
        content = submission.content
        shape = Shape(len(content), not content.isascii(), submission.smtputf8)
        dsn, asked = DsnRequest(submission.ret, submission.envid), RecipientRequest(submission.notify)
        mail = mail_line(submission.reverse_path, shape, dsn, has_size=True)
        try:
            self._say(mail, _SENDER)
            for recipient in submission.recipients:
                self._say(rcpt_line(recipient, asked), _RECIPIENT)
            self._say(b"DATA", _CONTENT)
        except Refusal:
            with contextlib.suppress(Refusal):
                self._say(b"RSET", _GREETING)
            raise
        # Killed here: the session ends without its final dot, and nothing is queued.
        stuffing = DotStuffing()
        for start in range(0, len(content), _CHUNK_BYTES):
            self._send(stuffing.add(content[start : start + _CHUNK_BYTES]))
        self._send(stuffing.finish())
        # Killed here: queued whole, or not at all; the caller has not seen exit 0 and may send it again.
        try:
            return str(self._expect(_CONTENT))
        except SessionLost as lost:
            lost.may_be_queued = True
            raise

    def _say(self, line: bytes, phase: _Phase) -> Reply:
        self._send(line + b"\r\n")
        return self._expect(phase)

    def _send(self, octets: bytes) -> None:
        try:
            self._connected.sendall(octets)
        except OSError as error:
            # A reply that the relay sent before it closed says more than the error.
            self._expect(_CONTENT)
            raise SessionLost(f"the connection to the relay was lost: {error.strerror or error}") from error

    def _expect(self, phase: _Phase) -> Reply:
        """Raise Refusal for 4yz, 5yz and no reply."""
        reply = self._reply()
        if reply.code < 400:
            return reply
        if reply.code == _CLOSING:
            raise SessionLost(f"{phase.name}: {reply}")
        if phase is _RECIPIENT and reply.enhanced == _TOO_MANY:
            raise Refusal(f"more recipients than the relay accepts: {reply}", os.EX_DATAERR)
        if not reply.is_permanent:
            raise Refusal(f"{phase.name}: {reply}", os.EX_TEMPFAIL)
        may_not = reply.code == 530 or (reply.enhanced or "").startswith("5.7.")
        raise Refusal(f"{phase.name}: {reply}", os.EX_NOPERM if may_not else phase.exit_code)

    def _reply(self) -> Reply:
        try:
            while (reply := self._parser.next_reply()) is None:
                received = self._connected.recv(_CHUNK_BYTES)
                if not received:
                    raise SessionLost("the relay closed the connection")
                self._parser.feed(received)
        except (OSError, MalformedReply) as error:
            raise SessionLost(f"the relay gave no answer: {error}") from error
        return reply


def bridged(connected: socket.socket, stdin: int, stdout: int) -> None:
    """Copy octets between two descriptors and a session until the session ends.  Raises OSError."""
    connected.settimeout(None)

    def inwards() -> None:
        with contextlib.suppress(OSError):
            while octets := os.read(stdin, _CHUNK_BYTES):
                connected.sendall(octets)
            connected.shutdown(socket.SHUT_WR)

    threading.Thread(target=inwards, daemon=True).start()
    while octets := connected.recv(_CHUNK_BYTES):
        while octets:
            octets = octets[os.write(stdout, octets) :]
