"""What ever came in, and what became of it: accepted = relayed + bounced + expired + deleted + queued.

An account, not a state: no message that has a recipient left is sent, kept or removed because of it.
Only of a report or a warning that went before its message could end, or could be marked, does it alone
tell that it was there; so the message stays `closed` for as long as its file.
An end without a beginning, which a crash lost, counts for both.
Does not: keep anything on disk.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, replace

from relay.mail.envelope import QueueId
from relay.spool.identity import subject_of
from relay.spool.interface import LedgerAccount, Status, Totals

Fates = tuple[int, int, int, int]
"""Recipients relayed, bounced, expired, deleted."""


class Ledger:
    def __init__(self) -> None:
        self.totals = Totals()
        """Without what open messages got so far."""
        self.open: dict[QueueId, int] = {}
        """Messages in the queue and how many recipients each came with."""
        self.closed: set[QueueId] = set()
        """Messages counted out, as far as it remembers: not to be counted again."""
        self.aside: set[QueueId] = set()
        """Open messages whose files are in corrupt/, where only a human being removes anything."""

    def clear(self) -> None:
        self.totals = Totals()
        self.open.clear()
        self.closed.clear()
        self.aside.clear()

    @property
    def account(self) -> LedgerAccount:
        """Return what another ledger has to know but for open messages, which bring that themselves."""
        ended = replace(self.totals, accepted=self.totals.accepted - sum(self.open.values()))
        aside = {queue_id: self.open[queue_id] for queue_id in self.aside if queue_id in self.open}
        return LedgerAccount(ended, frozenset(self.remembered), aside)

    def add(self, account: LedgerAccount) -> None:
        """Go on with the account of another one."""
        mine, its = astuple(self.totals), astuple(account.ended)
        self.totals = Totals(*map(sum, zip(mine, its, strict=True)))
        self.closed |= account.reports_gone
        self.count_in(account.aside.items())
        self.aside.update(account.aside)

    def count_in(self, messages: Iterable[tuple[QueueId, int]]) -> None:
        """Count messages in with their recipients, each once."""
        accepted = self.totals.accepted
        for queue_id, count in messages:
            if queue_id not in self.open and queue_id not in self.closed:
                self.open[queue_id] = count
                accepted += count
        self.totals = replace(self.totals, accepted=accepted)

    def count_out(self, queue_id: QueueId, fates: Fates) -> None:
        if queue_id not in self.closed:
            self.closed.add(queue_id)
            # A crash may have torn its `in`, which was written before it was known to be durable.
            lost = sum(fates) if self.open.pop(queue_id, None) is None else 0
            old = self.totals
            self.totals = Totals(
                old.accepted + lost,
                old.relayed + fates[0],
                old.bounced + fates[1],
                old.expired + fates[2],
                old.deleted + fates[3],
            )

    def reopen(self, queue_ids: Collection[QueueId]) -> None:
        """Forget that these messages, back from a backup, and their reports were counted out."""
        back = self.closed.intersection(queue_ids)
        if back:
            self.closed = {q for q in self.closed if q not in back and subject_of(q) not in back}

    def forget(self, queue_ids: Collection[QueueId]) -> int:
        """Count messages as deleted that somebody removed from corrupt/; return their recipients.

        Also those that were relayed before the damage: how many, only the removed file knew.
        """
        count = sum(self.open.pop(queue_id, 0) for queue_id in queue_ids)
        self.totals = replace(self.totals, deleted=self.totals.deleted + count)
        return count

    @property
    def remembered(self) -> set[QueueId]:
        """Return the reports about open messages that were counted out: they must not be published again."""
        return {queue_id for queue_id in self.closed if subject_of(queue_id) in self.open}


def fates_of(statuses: Sequence[Status]) -> Fates:
    return (
        statuses.count(Status.RELAYED) + statuses.count(Status.SUCCESS),
        statuses.count(Status.BOUNCED),
        statuses.count(Status.EXPIRED),
        statuses.count(Status.DELETED),
    )


def plus(one: Fates, other: Fates) -> Fates:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]
