"""A hostile upstream with kills: nothing is lost, over, bounced because of us, or twice without cause.

What is drawn and how it is judged: `tests/proofs/peers/hostile`.  A run that failed is had again
by the command that the failure prints; the seed draws everything but when each process gets the processor.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.proofs.peers.hostile.ledger import Cause, Fate, Ledger, Transaction, Uttered
from tests.proofs.peers.hostile.oracle import Broken, Evidence, judge
from tests.proofs.peers.hostile.search import search
from tests.proofs.peers.hostile.words import Letter, Recipient

SHORT_RUNS = 4
SHORT_WORKERS = 4
LONG_WORKERS = 6
"""Of two processors three keep each busy: a run waits more than half of its time."""
SECOND_NS = 1_000_000_000
ALICE = Recipient(1, 0, "alice.n1k0@list.test", "", ())
LETTER = Letter(1, "mjd@front.test", "lunch", (ALICE,), b"Subject: lunch\r\n\r\nat one\r\n", "")
RECEIVED = b"Received: from front.test\r\n\tby relay.test; now\r\n"
COPY = Transaction(
    number=0,
    connection=1,
    mail_at_ns=SECOND_NS,
    sender=LETTER.sender,
    accepted=[ALICE.address],
    content=RECEIVED + LETTER.content,
    fate=Fate.TAKEN,
    decided_at_ns=SECOND_NS + 1,
    told_at_ns=SECOND_NS + 2,
)
REPORT = replace(
    COPY,
    sender="",
    accepted=[LETTER.sender],
    content=b"Subject: x\r\n\r\nFinal-Recipient: rfc822; alice.n1k0@list.test\r\nAction: failed\r\n"
    b"Diagnostic-Code: smtp; 550 5.1.1\r\n User unknown q0q\r\n\r\n",
)
REFUSED = Uttered(0, SECOND_NS, 1, "rcpt", 550, "550 5.1.1 User unknown q0q", Cause.DEAD, "plain", ("n1k0",))


def _evidence(*transactions: Transaction, said: tuple[Uttered, ...] = (), **more: object) -> Evidence:
    ledger = Ledger({1: LETTER}, list(transactions), list(said))
    given: dict[str, object] = {
        "ledger": ledger,
        "acknowledged": {1: {0}},
        "attempted": {1: LETTER},
        "count": 2,
        "period_s": 1.0,
        "connections": 1,
        "max_transaction_s": 2.0,
    }
    return Evidence(**(given | more))  # type: ignore[arg-type]  # names are checked by the dataclass


def _later(seconds: float, one: Transaction = COPY) -> Transaction:
    by_ns = round(seconds * SECOND_NS)
    return replace(one, mail_at_ns=one.mail_at_ns + by_ns, decided_at_ns=one.decided_at_ns + by_ns)


@pytest.mark.parametrize(
    ("evidence", "broken"),
    [
        (_evidence(COPY), []),
        (_evidence(), [Broken.LOST]),
        (_evidence(queued={"n1k0"}), []),
        (_evidence(replace(COPY, fate=Fate.REFUSED)), [Broken.LOST]),
        (_evidence(REPORT, said=(REFUSED,)), []),
        (_evidence(REPORT, said=(replace(REFUSED, cause=Cause.US),)), [Broken.BOUNCED]),
        (_evidence(REPORT, said=(replace(REFUSED, about=("n2k0",)),)), [Broken.BOUNCED]),
        (_evidence(COPY, _later(5)), [Broken.TWICE]),
        (_evidence(COPY, _later(5), kills_ns=[(3 * SECOND_NS, 3 * SECOND_NS)]), []),
        (_evidence(COPY, _later(5), kills_ns=[(9 * SECOND_NS, 9 * SECOND_NS)]), [Broken.TWICE]),
        (_evidence(replace(COPY, told_at_ns=0), _later(5)), []),
        (_evidence(replace(COPY, told_at_ns=3 * SECOND_NS), _later(5)), []),
        (_evidence(replace(COPY, content=LETTER.content)), [Broken.CHANGED]),
        (_evidence(replace(COPY, content=RECEIVED + LETTER.content + b"\r\n")), [Broken.CHANGED]),
        (_evidence(replace(COPY, content=RECEIVED * 2 + LETTER.content)), [Broken.CHANGED]),
        (_evidence(replace(COPY, sender="eve@front.test")), [Broken.FOREIGN]),
        (_evidence(COPY, *(replace(_later(t), fate=Fate.DROPPED) for t in (0.5, 0.9))), [Broken.OVER]),
        (_evidence(COPY, *(replace(_later(t), fate=Fate.DROPPED) for t in (0.5, 1.0))), []),
        (
            _evidence(COPY, log=['{"event": "upstream_paused", "reason": "550 q0q"}'], said=(REFUSED,)),
            [Broken.WAITS],
        ),
        (
            _evidence(COPY, log=['{"event": "upstream_stopped", "reason": "the history is torn"}']),
            [Broken.WAITS],
        ),
        (
            _evidence(
                COPY,
                log=['{"event": "upstream_paused", "reason": "550 q0q"}'],
                said=(replace(REFUSED, cause=Cause.US),),
            ),
            [],
        ),
    ],
)
def test_the_oracle_accuses_who_breaks_a_promise_and_nobody_else(
    evidence: Evidence, broken: list[Broken]
) -> None:
    assert [found.promise for found in judge(evidence)] == broken


@pytest.mark.slow
def test_a_hostile_upstream_makes_the_relay_break_no_promise(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    found = search("short3", tmp_path, runs=SHORT_RUNS, seconds=60, workers=SHORT_WORKERS)
    tell(str(found))

    assert not found.broken + found.errors, found.explanation()
    # What was not tried is not shown.
    assert found.counts["runs"] == SHORT_RUNS
    happened = ("kills", "taken", "reports", "faulty_connections")
    assert min(found.counts[what] for what in happened) > 0, found.counts


@pytest.mark.crash
def test_a_hostile_upstream_with_kills_breaks_no_promise(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    seconds = crash_budget_s / 4
    found = search(str(crash_seed), tmp_path, runs=1 << 30, seconds=seconds, workers=LONG_WORKERS)
    tell(str(found))

    assert not found.broken + found.errors, found.explanation()
    assert found.counts["runs"] >= LONG_WORKERS
