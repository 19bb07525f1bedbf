"""The account that is practised on: when an attempt counts, and what it is answered.

Guarantees: each transaction that came to its final dot is counted once and entered once,
whether its client waits for the reply or is gone; one that is abandoned after MAIL is
counted where the account counts before the dot.
Assumes: one thread.
"""

import enum
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from relay.clock import SECOND_NS, Clock
from relay.mail.envelope import Envelope
from relay.policy.limits import LimitSettings
from relay.practice.witness import Sighting, Witness, Witnessed
from relay.smtp.session_machine import MailTransaction


class Counting(enum.StrEnum):
    """The instant of a transaction that counts.  Upstreams differ, and do not say."""

    AT_MAIL = "mail"
    AT_DOT = "dot"
    AT_REPLY = "reply"
    AT_RANDOM = "random"
    """Anywhere between MAIL and the reply, anew for each."""


@dataclass(slots=True)
class PracticeTransaction:
    """RFC 5321, 3.3.  Instants are the account's."""

    said: MailTransaction
    mail_at_ns: int
    client: str
    helo: str
    protocol: str
    user: str
    dot_at_ns: int = 0


@dataclass(frozen=True, slots=True)
class PracticeBehaviour:
    limit: LimitSettings
    cut_off_ns: int
    """How long everything is refused once the limit was exceeded."""
    counting: Counting = Counting.AT_RANDOM
    longest_delay_ns: int = 0
    """How late a reply to a final dot may be, at random."""
    keep: Path | None = None
    """The folder of what was accepted."""
    remember: int = 100_000
    """How many attempts the ledger keeps whole, the newest."""
    why_refused: Callable[[str], str | None] = lambda _: None
    """The reply to a recipient that is not taken, or None."""
    offers_dsn: bool = False
    """It says that it tells senders what they ask for (RFC 3461); it tells nobody anything."""


class PracticeAccount:
    def __init__(self, behaviour: PracticeBehaviour, rng: Random, clock: Clock) -> None:
        """Make the folder `keep`.  Raises OSError."""
        self.ledger = Witness(behaviour.limit, behaviour.cut_off_ns, remember=behaviour.remember)
        self.why_refused = behaviour.why_refused
        self.offers_dsn = behaviour.offers_dsn
        self._counting = behaviour.counting
        self._longest_delay_ns = behaviour.longest_delay_ns
        self._keep = behaviour.keep
        self._rng = rng
        self._clock = clock
        self._kept = 0 if behaviour.keep is None else _last_kept(behaviour.keep)

    def now_ns(self) -> int:
        return self._clock.boottime_ns()

    def delay_seconds(self) -> float:
        return self._rng.randint(0, self._longest_delay_ns) / SECOND_NS

    def settle(self, transaction: PracticeTransaction, content: bytes, fault: str | None) -> str:
        """Count a transaction that reached its dot, and return the reply that it gets now.

        `fault` is the reply to content that breaks the protocol; the limit goes first,
        as an upstream that cut somebody off does not look at content.
        """
        now_ns = self.now_ns()
        counted_at_ns = self._instant(transaction, now_ns)
        if not self.ledger.admit(counted_at_ns, len(transaction.said.recipients), now_ns):
            fate, reply = Witnessed.REFUSED, self._refusal()
        elif fault is not None:
            fate, reply = Witnessed.REFUSED, fault
        else:
            fate, reply = self._take(content)
        self._enter(transaction, counted_at_ns, content, reply, fate)
        return reply

    def abandon(self, transaction: PracticeTransaction) -> None:
        """Count it if this account counts before the dot."""
        if self._counting not in {Counting.AT_MAIL, Counting.AT_RANDOM}:
            return
        now_ns = self.now_ns()
        counted_at_ns = self._instant(transaction, now_ns)
        self.ledger.admit(counted_at_ns, len(transaction.said.recipients), now_ns)
        self._enter(transaction, counted_at_ns, b"", "", Witnessed.ABANDONED)

    def _instant(self, transaction: PracticeTransaction, now_ns: int) -> int:
        match self._counting:
            case Counting.AT_MAIL:
                return transaction.mail_at_ns
            case Counting.AT_DOT:
                return transaction.dot_at_ns
            case Counting.AT_REPLY:
                return now_ns
            case Counting.AT_RANDOM:
                return self._rng.randint(transaction.mail_at_ns, now_ns)

    def _refusal(self) -> str:
        return f"550 5.7.1 You have exceeded your sending limit of {self.ledger.limit.label}"

    def _take(self, content: bytes) -> tuple[Witnessed, str]:
        """Keep the content where that is wanted; deliver it to nobody."""
        number = self.ledger.relayed + 1
        if self._keep is not None:
            number = self._kept + 1
            try:
                # Neither synced nor in a thread: nothing is promised about these files.
                (self._keep / f"{number:06}.eml").write_bytes(content)
            except OSError as error:
                return Witnessed.REFUSED, f"452 4.3.1 Cannot keep the message: {error.strerror}"
            self._kept = number
        return Witnessed.RELAYED, f"250 2.0.0 Ok: practised as {number}"

    def _enter(
        self,
        transaction: PracticeTransaction,
        counted_at_ns: int,
        content: bytes,
        reply: str,
        fate: Witnessed,
    ) -> None:
        envelope = Envelope(
            reverse_path=transaction.said.reverse_path,
            recipients=tuple(transaction.said.recipients),
            arrival_at_ns=self._clock.wall_ns(),
            client=transaction.client,
            helo=transaction.helo,
            protocol=transaction.protocol,
            user=transaction.user,
            smtputf8=transaction.said.smtputf8,
            dsn=transaction.said.dsn,
        )
        digest = hashlib.sha256(content).hexdigest()
        self.ledger.enter(Sighting(counted_at_ns, envelope, len(content), digest, reply, fate))


def _last_kept(folder: Path) -> int:
    """Make the folder, and return the highest number in it: what was kept before stays."""
    folder.mkdir(parents=True, exist_ok=True)
    names = (re.fullmatch(r"([0-9]+)\.eml", path.name) for path in folder.iterdir())
    return max((int(name[1]) for name in names if name), default=0)
