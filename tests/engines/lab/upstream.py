"""An upstream that takes, refuses, defers and hangs up, as recipients are named, and notes what it sees.

    ok…        taken
    no…        refused at RCPT
    later…     deferred once, then taken
    never…     deferred each time, until it expires
    unloved…   refused with the whole message, at its final dot
    lost…      taken, and the connection is closed instead of a reply; taken again after that
Who is told of failures is `front…`; reports to `deaf…` are refused.
"""

from collections.abc import Sequence

from tests.engines.lab.observations import Observations, Scribe
from tests.fakes.smarthost import CLOSE, DEFAULT, Script, Smarthost, Turn
from tests.system.loop_thread import LoopThread

REFUSED, DEFERRED = "550 5.1.1 nobody of that name", "450 4.2.0 come again"
REFUSED_ALL = "554 5.6.0 we do not like it"


class Upstream(LoopThread):
    """A server in a thread of its own.  A context manager: in it, it listens."""

    def __init__(self, scribe: Scribe) -> None:
        super().__init__()
        self._scribe = scribe
        self._seen: set[str] = set()
        """Recipients that were deferred, or lost, once."""
        self._host = Smarthost(Script(mail=self._mail, rcpt=self._rcpt, eod=self._end_of_content))

    @property
    def port(self) -> int:
        return self._host.port

    async def begin(self) -> None:
        await self._host.__aenter__()

    async def end(self) -> None:
        await self._host.stop()
        self._scribe.faults += [f"the relay broke the protocol: {fault}" for fault in self._host.faults]

    def _mail(self, _argument: str) -> Turn:
        self._scribe.note(Observations.mail)
        return DEFAULT

    def _rcpt(self, argument: str) -> Turn:
        self._scribe.note(Observations.rcpt)
        recipient = argument.removeprefix("TO:").strip("<>")
        if recipient.startswith(("no", "deaf")):
            reply = REFUSED
        elif recipient.startswith("never") or (recipient.startswith("later") and self._is_first(recipient)):
            reply = DEFERRED
        else:
            return DEFAULT
        self._scribe.note(Observations.refuse, recipient)
        return reply

    def _end_of_content(self, _argument: str) -> Turn:
        transaction = self._host.transactions[-1]
        turn = self._turn_of(transaction.recipients)
        for each in transaction.recipients:
            if turn != REFUSED_ALL:
                self._scribe.note(Observations.take, each, transaction.content)
            if turn != DEFAULT:
                self._scribe.note(Observations.refuse, each)
        return turn

    def _turn_of(self, recipients: Sequence[str]) -> Turn:
        if any(each.startswith("unloved") for each in recipients):
            return REFUSED_ALL
        first = [each for each in recipients if each.startswith("lost") and self._is_first(each)]
        return CLOSE if first else DEFAULT

    def _is_first(self, recipient: str) -> bool:
        is_first = recipient not in self._seen
        self._seen.add(recipient)
        return is_first
