"""The judge itself: it sees a relay whose policy allows too much, and it counts as its words say."""

import random
import smtplib
from pathlib import Path

import pytest

from tests.system.strict_smarthost import StrictSmarthost
from tests.system.warm import WarmRelay
from tests.system.witness import SECOND_NS, Witness

LIMIT = {"messages": 5, "per": "1h"}


def test_a_relay_that_may_send_twice_as_much_is_seen_to_be_over(tmp_path: Path) -> None:
    with StrictSmarthost(tmp_path, LIMIT, seed=1) as host:
        with WarmRelay(tmp_path, {"isp": host.upstream(limits=[LIMIT | {"messages": 10}])}) as relay:
            with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
                for _ in range(10):
                    session.sendmail("mjd@front.test", ["r@list.test"], "Subject: x\r\n\r\nx\r\n")
            host.wait_until(lambda ledger: ledger.refused > 0)
        assert (host.ledger.relayed, host.ledger.cut_offs) == (5, 1)
        assert host.ledger.most_in_any_window() > 5


@pytest.mark.parametrize("unit", ["messages", "recipients"])
def test_the_witness_refuses_what_makes_any_window_too_full(unit: str) -> None:
    dice, attempts, now_ns = random.Random(1), list[tuple[int, int]](), 0
    witness = Witness({unit: 6, "per": "1s"})
    for _ in range(400):
        now_ns += dice.choice([0, SECOND_NS // 8, SECOND_NS // 4])
        at_ns = max(0, now_ns - dice.choice([0, SECOND_NS // 8, SECOND_NS]))
        weight = dice.randint(1, 3) if unit == "recipients" else 1
        attempts.append((at_ns, weight))
        # Any window with it in it ends less than a period later; instants lie an eighth apart.
        ends = range(at_ns, at_ns + SECOND_NS, SECOND_NS // 8)
        held = [sum(its for each, its in attempts if end - SECOND_NS < each <= end) for end in ends]
        assert witness.admit(at_ns, weight, now_ns) is (max(held) <= 6)
    ends = range(0, now_ns + 1, SECOND_NS // 8)
    held = [sum(its for each, its in attempts if end - SECOND_NS < each <= end) for end in ends]
    assert witness.most_in_any_window() == max(held)
    assert 0 < witness.cut_offs < 400


def test_who_exceeds_is_cut_off_for_a_while_and_counts_meanwhile() -> None:
    witness = Witness({"messages": 1, "per": "1s"}, cut_off_ns=2 * SECOND_NS)
    assert [witness.admit(at, 1, at) for at in (0, SECOND_NS // 2, 2 * SECOND_NS, 3 * SECOND_NS)] == [
        *(True, False, False, True)
    ]
    assert (witness.cut_offs, witness.most_in_any_window()) == (1, 2)
