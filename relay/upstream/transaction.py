"""One transaction on one connection: MAIL, RCPT, DATA, content, final dot (RFC 5321, 3.3).

Guarantees: whatever the upstream does, there is one `Outcome`, with one `Answer` for each recipient.  A
recipient is RELAYED only by 250 to the final dot, and BOUNCE only by a well-formed refusal to which the rules
of the `Judge` give that verdict.  Whatever is unclear ends the connection.  No content is sent if no
recipient was accepted.
With PIPELINING (RFC 2920) only the order tells which command a reply answers.  So a permanent refusal is
believed only after 354, or the reply to a second EHLO or to QUIT: no other command gets these.  Until then a
missing or an extra reply takes the refusal back, and a hang-up leaves it unproven (`Answer.is_unproven`).
A refusal that may be about DSN parameters (RFC 3461) refuses no recipient, and sets `Outcome.is_dsn_refused`.
Crash before the final dot: nothing was relayed.  Crash between the dot and the end of `Exchange.run`: nobody
knows.  Without a crash, `Outcome.is_ambiguous` reports that case.
Assumes: the addresses are valid, and `why_unfit` returned None.
Does not: choose the recipients, count, or settle anything durably.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from relay.clock import SECOND_NS
from relay.mail.dsn import NO_REQUEST, NOTHING_ASKED, DsnRequest
from relay.mail.envelope import Shape
from relay.smtp.commands import mail_line, rcpt_line
from relay.smtp.extensions import Extensions
from relay.smtp.reply import Phase, Reply
from relay.upstream.protocol import Broken, Garbled, Late, Lost, StrictProtocol, Timeouts
from relay.verdicts.outcome import Answer, Outcome, is_about_dsn
from relay.verdicts.verdict import Judge, Scope, Verdict

RCPT_ACCEPTED = frozenset({250, 251, 252})
"""RFC 5321, 4.3.2.  252 ("will try") does no harm, since only the final dot relays."""

AHEAD = 10
"""How many RCPTs are sent before a reply.  After a refusal of all recipients, only these are refused too:
Postfix hangs up after 20 errors (`smtpd_hard_error_limit`), and then relays to none that it accepted."""

REFUSED = frozenset({Verdict.BOUNCE, Verdict.DEFER})

LAST_REPLY_SHARE = 1 / 3
"""The share of a transaction's longest time that is reserved for the last reply: 10 minutes of 30."""


class Transaction(NamedTuple):
    reverse_path: str
    recipients: tuple[str, ...]
    shape: Shape
    content: Callable[[], AsyncGenerator[bytes, None]]
    """Yields the content as stored: CRLF line ends, not dot-stuffed.  Called at most once."""
    longest_ns: int = 3600 * SECOND_NS
    """The transaction ends within this time, which includes the wait for the last reply."""
    dsn: DsnRequest = NOTHING_ASKED
    """The requests for these recipients; not sent if the connection does not offer DSN."""


def why_unfit(extensions: Extensions, shape: Shape) -> Answer | None:
    """Return why a connection with these extensions cannot carry the message, as a DEFER answer, or None.

    Another connection to the same upstream may carry it: the hosts behind one name differ.
    A relay may not convert another's content to 7-bit, which breaks signatures.  If it sends the content as
    it is, the content breaks elsewhere (RFC 6152, 3; RFC 6531, 3.2; RFC 1870, 6.1).
    """
    most_bytes = extensions.max_size_bytes
    # RFC 6531, 3.5, and RFC 3463, 3.7 and 3.4: non-ASCII addresses, conversion required, too big.
    if shape.smtputf8 and not extensions.smtputf8:
        status, text = "5.6.7", "the message needs SMTPUTF8, which the upstream does not offer"
    elif shape.eight_bit and not extensions.eight_bit:
        status, text = "5.6.3", "the message needs 8BITMIME, which the upstream does not offer"
    elif most_bytes is not None and shape.size_bytes > most_bytes:
        text = f"the message has {shape.size_bytes} octets, the upstream takes at most {most_bytes}"
        status = "5.3.4"
    else:
        return None
    return Answer(Verdict.DEFER, Phase.MAIL, None, text, own_status=status, is_unfit=True)


@dataclass(slots=True)
class Channel:
    protocol: StrictProtocol
    extensions: Extensions
    timeouts: Timeouts
    judge: Judge
    hello: bytes
    """Our EHLO.  The reply to a second EHLO is known by `welcome`, the first line of the first reply."""
    welcome: str = ""


class Exchange:
    def __init__(self, channel: Channel, transaction: Transaction, *, is_reused: bool) -> None:
        self._protocol = channel.protocol
        self._channel = channel
        self._timeouts = channel.timeouts
        self._transaction = transaction
        self._dsn = transaction.dsn if channel.extensions.dsn else NOTHING_ASKED
        self._is_dsn_refused = False
        self._is_reused = is_reused
        self._is_pipelined = channel.extensions.pipelining
        self._loop = asyncio.get_running_loop()
        longest_s = transaction.longest_ns / SECOND_NS
        self._end = self._loop.time() + longest_s
        self._dot_until = self._end - min(self._timeouts.eod_s, longest_s * LAST_REPLY_SHARE)
        self._answers: list[Answer | None] = [None] * len(transaction.recipients)
        self._ahead = 0  # how many commands were sent whose replies are not taken yet
        self._proven: frozenset[int] = frozenset()  # indices of answers that came to their own commands
        self._is_dot_out = False
        self._asked = 0  # index of the recipient that a reply to RCPT is about

    async def run(self) -> Outcome:
        """Run the transaction; afterwards the connection is usable if `protocol.is_quiet`.

        Raises only what the content raises (nothing was relayed then), and CancelledError.  Either closes
        the connection at once.
        """
        broken = None
        try:
            await self._walk()
        except BaseException as error:
            # Crash here: the final dot was not sent, or its reply was not read.
            self._protocol.abort()
            if not isinstance(error, Broken):
                raise
            broken = error
            self._settle_rest(self._answer_to_break(broken))
        self._take_back_unproven(broken)
        is_over = broken is None or self._is_over(broken)
        answers = tuple([answer for answer in self._answers if answer is not None])
        is_ambiguous = self._is_dot_out and not is_over
        return Outcome(answers, is_ambiguous, is_over, self._is_dsn_refused)

    async def _walk(self) -> None:
        """Send commands until a reply settles each recipient.  Raises Broken, and what the content raises."""
        transaction, has_size = self._transaction, self._channel.extensions.has_size
        mail = mail_line(transaction.reverse_path, transaction.shape, self._dsn, has_size=has_size)
        self._send(Phase.MAIL, [mail, *self._ahead_of(0)])
        reply = await self._reply(Phase.MAIL, self._timeouts.mail_s)
        of_mail = None if reply.code == 250 else self._refusal(reply)
        if of_mail is not None:
            self._settle_rest(of_mail)
        accepted = await self._send_recipients(of_mail)
        if accepted and not self._ahead:
            self._send(Phase.DATA, [b"DATA"])
        if self._ahead:
            reply = await self._reply(Phase.DATA, self._timeouts.data_s)
            if reply.code == 354 and of_mail is None:
                self._know_in_step()
                if accepted:
                    await self._send_content()
                else:
                    # The upstream would take content for no recipient (RFC 2920, 3.1); send none, and no dot.
                    self._protocol.abort()
                return
            self._check_refused(reply)
            if accepted:
                self._settle_rest(self._refusal(reply))
        await self._end_refused()

    async def _send_recipients(self, of_mail: Answer | None) -> list[int]:
        """Settle the refused recipients; return the indices of the accepted.

        A refusal for the number of recipients, or about the message or us, also holds for the recipients
        behind it, unless the upstream accepts one.  DATA follows for the accepted: otherwise a message with
        more recipients than the upstream's quota would be relayed to none of them.
        """
        accepted: list[int] = []
        of_all = of_mail
        for index in range(len(self._answers)):
            if not self._ahead:
                if of_all is not None:
                    break
                self._send(Phase.RCPT, self._ahead_of(index) or [self._rcpt_line(index)])
            self._asked = index
            reply = await self._reply(Phase.RCPT, self._timeouts.rcpt_s)
            if of_mail is not None:
                self._check_refused(reply)  # if not, the refused command was not MAIL
            elif reply.code in RCPT_ACCEPTED:
                accepted.append(index)
            else:
                of_all = self._refuse(index, reply, of_all, is_first=not accepted)
        if of_all is not None:
            self._settle_rest(of_all, but=accepted)
        return accepted

    def _refuse(self, index: int, reply: Reply, of_all: Answer | None, *, is_first: bool) -> Answer | None:
        """Settle a refused recipient; return the refusal that also holds for those behind it, or None."""
        if of_all is not None and of_all.verdict is not Verdict.BOUNCE:
            self._check_refused(reply)
            self._answers[index] = of_all
            return of_all
        answer = self._refusal(reply)
        if answer.phase is Phase.MAIL:
            self._answers[index] = answer  # about DSN parameters: other recipients may have none
            return of_all
        if of_all is not None and answer.verdict is Verdict.BOUNCE:
            answer = of_all
        elif answer.verdict is Verdict.LATER and is_first:
            # "Too many" although none was accepted is no limit of this transaction.  Retries at once would
            # never end.
            answer = answer._replace(verdict=Verdict.DEFER, ruling=None)
        self._answers[index] = answer
        is_of_all = answer.verdict is Verdict.LATER or answer.scope is not Scope.RECIPIENT
        return answer if is_of_all else of_all

    async def _send_content(self) -> None:
        async with aclosing(self._transaction.content()) as content:
            early = await self._protocol.send_content(content, self._timeouts.block_s, self._dot_until)
        self._protocol.phase = Phase.EOD
        if early is not None:
            # The dot was not sent, and never will be on this connection.
            self._settle_rest(self._refusal(early))
            self._protocol.abort()
            return
        self._is_dot_out = True
        # Crash here: the message may have been relayed; it stays queued and its slot stays charged.
        reply = await self._protocol.reply(min(self._timeouts.eod_s, self._end - self._loop.time()))
        if reply.code == 250:
            self._settle_rest(self._answer(reply))
        else:
            self._settle_rest(self._refusal(reply))
            await self._end_refused()

    async def _end_refused(self) -> None:
        """Reset the connection; if a recipient bounces, by a command whose reply no other command gets.

        An unsolicited reply just behind a command shifts all later replies by one command, and 250 to RSET
        does not show that.  A second EHLO also resets (RFC 5321, 4.1.4), and its reply has several lines like
        the first; QUIT gets 221.
        """
        if not any(answer and answer.verdict is Verdict.BOUNCE for answer in self._answers):
            await self._finish(b"RSET", 250)
            return
        reply = await self._finish(self._channel.hello)
        # A reply of one line may answer any command.
        if (reply.code, reply.lines[:1], len(reply.lines) > 1) != (250, (self._channel.welcome,), True):
            await self._finish(b"QUIT", 221)
            self._protocol.abort()
        self._know_in_step()

    async def _finish(self, line: bytes, code: int | None = None) -> Reply:
        left_s = max(0.0, self._end - self._loop.time())
        reply = await self._protocol.command(line, Phase.RSET, min(self._timeouts.reset_s, left_s))
        if code is not None and reply.code != code:
            raise Garbled(f"the reply to {line.decode()} is not {code}: {reply}")
        return reply

    # Sending.

    def _send(self, phase: Phase, lines: list[bytes]) -> None:
        self._protocol.phase = phase
        self._check_time()
        self._protocol.send(lines)
        self._ahead = len(lines)

    async def _reply(self, phase: Phase, timeout_s: float) -> Reply:
        self._protocol.phase = phase
        self._ahead -= 1
        return await self._protocol.reply(min(timeout_s, self._check_time()))

    def _check_time(self) -> float:
        """Return the seconds left until the deadline of the final dot.  Raises Late."""
        left_s = self._dot_until - self._loop.time()
        if left_s <= 0:
            raise Late("the transaction took too long")
        return left_s

    def _ahead_of(self, first: int) -> list[bytes]:
        """Return the commands to send before a reply: RCPTs from `first` on, and DATA after the last."""
        if not self._is_pipelined:
            return []
        count, end = len(self._answers), first + AHEAD
        lines = [self._rcpt_line(index) for index in range(first, min(end, count))]
        return [*lines, b"DATA"] if count <= end else lines

    def _rcpt_line(self, index: int) -> bytes:
        transaction = self._transaction
        asked = self._dsn.of(index)
        return rcpt_line(transaction.recipients[index], asked, smtputf8=transaction.shape.smtputf8)

    # Judging replies.

    @staticmethod
    def _check_refused(reply: Reply) -> None:
        if not reply.is_transient and not reply.is_permanent:
            raise Garbled(f"unexpected reply: {reply}")

    def _refusal(self, reply: Reply) -> Answer:
        """Return the answer that a refusal gives.  Raises Garbled if the reply is no refusal."""
        self._check_refused(reply)
        answer = self._answer(reply)
        if answer.verdict is not Verdict.BOUNCE:
            return answer
        if reply.code == 503 and self._is_pipelined:
            # A command was lost, or the replies are out of step.
            raise Garbled(f"the commands were in order, but the reply is {reply}")
        if self._has_dsn(answer.phase) and is_about_dsn(reply):
            self._is_dsn_refused = True
            # As a refusal of MAIL, before any recipient: the message goes again at once, without DSN's.
            return answer._replace(verdict=Verdict.LATER, phase=Phase.MAIL, ruling=None)
        return answer

    def _has_dsn(self, phase: Phase) -> bool:
        """Whether the refused command carried DSN parameters."""
        if phase is Phase.MAIL:
            return self._dsn.ret is not None or bool(self._dsn.envid)
        return phase is Phase.RCPT and self._dsn.of(self._asked) != NO_REQUEST

    def _answer(self, reply: Reply) -> Answer:
        phase, transaction = self._protocol.phase, self._transaction
        # The recipients that the reply may name.
        about = () if phase is Phase.MAIL else transaction.recipients
        if phase is Phase.RCPT:
            about = about[self._asked : self._asked + 1]
        ruling = self._channel.judge.ruling(phase, reply, transaction.reverse_path, about)
        return Answer(ruling.verdict, phase, reply, str(reply), ruling=ruling)

    # Judging a broken connection.

    def _is_over(self, broken: Broken) -> bool:
        """Whether the upstream counts nothing more of this transaction, although the connection broke.

        A silent upstream may be slow: it may read our MAIL, or decide about our dot, long after we
        closed.  An upstream that hung up before the dot counts nothing more.
        """
        if broken.reply is not None or (isinstance(broken, Lost) and not self._is_dot_out):
            return True
        phase = self._protocol.phase
        return phase is Phase.RSET or (phase is Phase.MAIL and broken.is_unasked)

    def _take_back_unproven(self, broken: Broken | None) -> None:
        """Take back refusals that may be replies to other commands than we took them for."""
        # If commands were sent ahead, a missing reply ends in Late: the reply to the last never comes.
        has_more_out = self._is_pipelined or self._protocol.phase is Phase.RSET
        is_shifted = isinstance(broken, Garbled) or (isinstance(broken, Late) and has_more_out)
        # An upstream that closes an idle connection may send its reply just as MAIL goes out.
        was_idle = isinstance(broken, Lost) and self._is_reused
        for index, answer in enumerate(self._answers):
            if answer is None or index in self._proven or answer.verdict not in REFUSED:
                continue
            if is_shifted:
                self._answers[index] = answer._replace(verdict=Verdict.DEFER, ruling=None)
            elif was_idle and answer.phase is Phase.MAIL:
                self._answers[index] = answer._replace(verdict=Verdict.LATER, ruling=None)
            elif answer.verdict is Verdict.BOUNCE:
                # The same refusal in a later transaction confirms it.
                self._answers[index] = answer._replace(verdict=Verdict.DEFER, is_unproven=True)

    def _answer_to_break(self, broken: Broken) -> Answer:
        phase = self._protocol.phase
        if phase is Phase.MAIL and (broken.is_unasked or (self._is_reused and broken.reply is None)):
            # A kept connection that died while idle says nothing about the message: try another connection
            # at once.  A new connection that dies pauses the upstream.
            return broken.answer(phase, Verdict.LATER if self._is_reused else Verdict.PAUSE)
        if broken.reply is not None:
            return self._answer(broken.reply)
        # Not PAUSE: a message whose content makes the upstream hang up each time must not stop all others.
        return broken.answer(phase, Verdict.DEFER)

    # Settling recipients.

    def _settle_rest(self, answer: Answer, *, but: Sequence[int] = ()) -> None:
        kept = frozenset(but)
        for index, settled in enumerate(self._answers):
            if settled is None and index not in kept:
                self._answers[index] = answer

    def _know_in_step(self) -> None:
        """Note that every reply so far answered its own command."""
        self._proven = frozenset(index for index, answer in enumerate(self._answers) if answer is not None)
