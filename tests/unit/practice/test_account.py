"""When an attempt counts, what it is answered, and what is kept of it."""

from pathlib import Path
from random import Random

import pytest

from relay.clock import SECOND_NS
from relay.practice.account import Counting, PracticeAccount, PracticeBehaviour, PracticeTransaction
from relay.practice.witness import Witnessed
from relay.smtp.session_machine import MailTransaction
from tests.unit.practice.tools import MINUTE_NS, HandClock, limit

CONTENT = b"Subject: x\r\n\r\nHello\r\n"


class Case:
    """An account with everything that it needs, and a transaction that takes a while."""

    def __init__(
        self, counting: Counting = Counting.AT_DOT, *, keep: Path | None = None, seed: int = 1
    ) -> None:
        self.clock = HandClock()
        behaviour = PracticeBehaviour(
            limit("messages", 2), MINUTE_NS, counting, longest_delay_ns=2 * SECOND_NS, keep=keep
        )
        self.account = PracticeAccount(behaviour, Random(seed), self.clock)
        self.ledger = self.account.ledger

    def begin(self) -> PracticeTransaction:
        return PracticeTransaction(
            MailTransaction("a@example.org", smtputf8=False, recipients=["b@example.com", "c@example.com"]),
            mail_at_ns=self.clock.now_ns,
            client="unknown[127.0.0.1]",
            helo="client.example",
            protocol="ESMTPA",
            user="mjd",
            dot_at_ns=self.clock.now_ns,
        )

    def settle_slowly(self) -> str:
        """Let 10 s pass between MAIL and the dot, and 10 s between the dot and the reply."""
        transaction = self.begin()
        self.clock.now_ns += 10 * SECOND_NS
        transaction.dot_at_ns = self.clock.now_ns
        self.clock.now_ns += 10 * SECOND_NS
        return self.account.settle(transaction, CONTENT, None)


@pytest.mark.parametrize(
    ("counting", "after_seconds"), [(Counting.AT_MAIL, 0), (Counting.AT_DOT, 10), (Counting.AT_REPLY, 20)]
)
def test_an_attempt_counts_at_the_instant_of_its_account(counting: Counting, after_seconds: int) -> None:
    case = Case(counting)
    start_ns = case.clock.now_ns

    case.settle_slowly()

    assert case.ledger.entries[0].counted_at_ns == start_ns + after_seconds * SECOND_NS


def test_attempts_above_the_limit_get_the_reply_of_the_story() -> None:
    case = Case()
    replies = [case.settle_slowly() for _ in range(4)]

    assert [reply[:3] for reply in replies] == ["250", "250", "550", "550"]
    assert replies[2] == "550 5.7.1 You have exceeded your sending limit of 2 messages per 60s"
    assert (case.ledger.relayed, case.ledger.refused) == (2, 2)


@pytest.mark.parametrize("counting", list(Counting))
def test_an_abandoned_transaction_counts_if_counted_before_the_dot(counting: Counting) -> None:
    case = Case(counting)

    case.account.abandon(case.begin())

    counted = counting in {Counting.AT_MAIL, Counting.AT_RANDOM}
    assert case.ledger.most_in_any_window() == case.ledger.abandoned == counted
    assert [entry.fate for entry in case.ledger.entries] == [Witnessed.ABANDONED] * counted


def test_accepted_content_is_kept_byte_for_byte_beside_the_older(tmp_path: Path) -> None:
    keep = tmp_path / "made" / "on demand"
    Case(keep=keep).settle_slowly()
    (keep / "notes.txt").write_text("not ours")
    second = Case(keep=keep)

    replies = [second.settle_slowly() for _ in range(3)]

    assert replies[0] == "250 2.0.0 Ok: practised as 2"
    names = ["000001.eml", "000002.eml", "000003.eml", "notes.txt"]
    assert sorted(path.name for path in keep.iterdir()) == names
    assert all((keep / name).read_bytes() == CONTENT for name in names[:3])
