"""A sender process: it reserves, waits out a flight, settles and prints, until it is killed or has enough.

Run as `python -m tests.engines.history.worker HISTORY COUNT PERIOD_NS TRANSACTION_NS FLIGHT_NS GRANTS
SEED`. HISTORY is a path or a URL. No flight is longer than FLIGHT_NS if the machine keeps up.
It prints `granted ID START DEADLINE` before a transaction starts and `ended ID END` after it ended. It prints
`late ID END` instead if the transaction missed its deadline: the machine was slow, and that proves nothing.
"""

import sys
import tempfile
import time
from pathlib import Path
from random import Random

from relay.clock import SECOND_NS, SystemClock
from relay.spool.database.account import SharedAccount
from relay.spool.database.connection import Database
from relay.spool.disk.durable import RealDisk
from relay.throttle.admission import Request
from relay.throttle.file_history import FileHistory
from relay.throttle.history import History
from relay.throttle.postgresql_history import HighWaterMark, PostgresqlHistory
from relay.throttle.throttle import Reservation, Throttle
from tests.engines.history.limits import limit as any_limit

REPLACE_ABOVE_BYTES, REPLACE_ABOVE_GROUPS = 4096, 64
"""Small, so that some processes are killed during a replacement."""


def main() -> None:
    path, *numbers = sys.argv[1:]
    count, period_ns, transaction_ns, flight_ns, grants, seed = map(int, numbers)
    clock, random = SystemClock(), Random(seed)
    limits = [any_limit(count, period_ns)]
    account = Throttle(_history(path, clock), limits, clock, transaction_ns=transaction_ns)
    while grants > 0:
        answers = account.reserve([Request(1)] * random.randint(1, 3))
        for answer in answers:
            if isinstance(answer, Reservation):
                grants -= 1
                _say("granted", answer.slot.id, clock.boottime_ns(), answer.deadline_ns)
                time.sleep(random.random() * flight_ns / SECOND_NS)
                end_ns = clock.boottime_ns()
                account.settle(answer, end_ns)
                _say("ended" if end_ns < answer.deadline_ns else "late", answer.slot.id, end_ns)
        until_ns = max(usage.opens_at_ns for usage in account.usage())
        time.sleep(max(0, until_ns - clock.boottime_ns()) / SECOND_NS)
    account.flush()


def _history(path: str, clock: SystemClock) -> History:
    if path.startswith("postgresql://"):
        account = SharedAccount(Database(path), "isp")
        mark = HighWaterMark(f"{tempfile.mkdtemp()}/mark", RealDisk())
        return PostgresqlHistory(account, mark, clock, replace_above_groups=REPLACE_ABOVE_GROUPS)
    return FileHistory(Path(path), RealDisk(), clock, replace_above_bytes=REPLACE_ABOVE_BYTES)


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


main()
