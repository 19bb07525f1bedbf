"""The relay at work while its disk is recorded: clients, a kill, and every kind of end but an operator's.

What a message can come to happens to some: relayed, deferred, bounced, expired, warned of, its report
refused.
"""

import os
import random
import re
import smtplib
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tests.engines.lab import kernel
from tests.engines.lab.observations import Letter, Observations, Scribe
from tests.engines.lab.upstream import Upstream
from tests.system.relay import PROJECT, RelayProcess
from tests.system.waiting import HANG_S, wait_until

CLIENTS = 3
KINDS = ("ok", "ok", "ok", "ok", "no", "later", "lost", "unloved", "never")
ISP = {
    "host": "127.0.0.1",
    "tls": "none",
    "connections": 3,
    "limits": [{"messages": 1_000_000, "per": "24h"}, {"recipients": 1_000_000, "per": "24h"}],
    # A third of its recipients are refused, on purpose.
    "shield": None,
}
RETRY = {"min": "1s", "max": "2s", "lifetime": "2s", "warn_after": "1s"}
LONG_BYTES = 300_000
_ENDED = re.compile(r"relay\[[0-9]+\]: ([0-9a-z]+): to=<(.*?)>, .*, status=(?:sent|bounced|expired) ")


class RelayAtWork(RelayProcess):
    """A relay whose log is read as it is written; or a careless one."""

    def __init__(self, folder: Path, scribe: Scribe, careless: str | None, **policy: Any) -> None:
        super().__init__(folder, **policy)
        self._scribe = scribe
        self._program = ["tests.engines.lab.careless", careless] if careless else ["relay"]
        self._readers: list[threading.Thread] = []

    def spawn(self, **environment: str) -> None:
        program = [sys.executable, "-m", *self._program, "run", "--policy", str(self.policy_path)]
        self._relay = relay = subprocess.Popen(
            kernel.ending_with_us(*program),
            cwd=PROJECT,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert relay.stderr is not None
        self._readers.append(threading.Thread(target=self._read, args=(relay.stderr,)))
        self._readers[-1].start()

    def kill(self) -> None:
        super().kill()
        for reader in self._readers:
            reader.join()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe, self._log_path.open("ab", buffering=0) as log:
            for line in pipe:
                if found := _ENDED.search(line.decode(errors="replace")):
                    self._scribe.note(Observations.tell, *found.groups())
                log.write(line)


def letters(rng: random.Random, first: int, count: int) -> list[Letter]:
    """Draw messages; their recipients' names say what becomes of them."""
    drawn = []
    for number in range(first, first + count):
        kinds = ["never"] if number % 8 == 3 else rng.choices(KINDS, k=rng.choice((1, 1, 2, 3, 5)))
        recipients = tuple(f"{kind}{number}-{index}@list.test" for index, kind in enumerate(kinds))
        sender = f"{rng.choice(('front', 'front', 'front', 'deaf'))}{number}@front.test"
        size = LONG_BYTES if number % 32 == 5 else rng.choice((40, 400, 4000, 9000))
        line = f".{number} " + "".join(rng.choices("abcdefgh ", k=60)) + "\r\n"
        content = f"Subject: {number}\r\n\r\n" + line * (size // len(line) + 1)
        drawn.append(Letter(number, sender, recipients, content.encode()))
    return drawn


class _Clients:
    """Hand letters over, each once, whatever becomes of it."""

    def __init__(self, port: int, plan: Sequence[Letter], scribe: Scribe) -> None:
        self._port = port
        self._scribe = scribe
        self.left = list(reversed(plan))
        self.may_go_on = threading.Event()
        """Nobody is to be found while the relay is down."""
        self.may_go_on.set()
        self.threads = [threading.Thread(target=self._run, name=f"client {n}") for n in range(CLIENTS)]

    def _run(self) -> None:
        while self.left:
            self.may_go_on.wait()
            try:
                with smtplib.SMTP("127.0.0.1", self._port, timeout=HANG_S) as session:
                    while self.left:
                        self._hand_over(session, self.left.pop())
            except (OSError, smtplib.SMTPException, IndexError):
                # Another client had the last letter, or the kill cut this one off: it may be there or not.
                continue

    def _hand_over(self, session: smtplib.SMTP, letter: Letter) -> None:
        self._scribe.note(Observations.offer, letter)
        session.ehlo_or_helo_if_needed()
        for code, reply in (
            session.mail(letter.reverse_path),
            *(session.rcpt(recipient) for recipient in letter.recipients),
            session.data(letter.content),
        ):
            if code != 250:
                raise smtplib.SMTPResponseException(code, reply)
        self._scribe.note(Observations.accept, letter.number, reply.decode().rpartition(" ")[2])


def work(
    folder: Path, disk: Path, scribe: Scribe, plan: Sequence[Letter], *, engine: str, careless: str | None
) -> None:
    """Have a relay whose spool is on `disk` relay a plan; it is killed halfway, and at the end.

    `folder` is for its policy and its log.
    """
    with Upstream(scribe) as upstream:
        relay = RelayAtWork(
            folder,
            scribe,
            careless,
            upstreams={"isp": ISP | {"port": upstream.port, "history": str(disk / "history")}},
            spool={"path": str(disk / "spool"), "engine": engine},
            retry=RETRY,
            reports={"per_hour": None},
        )
        try:
            relay.start()
            clients = _Clients(relay.port, plan, scribe)
            for thread in clients.threads:
                thread.start()
            try:
                wait_until(lambda: len(clients.left) < len(plan) // 2)
                clients.may_go_on.clear()
                relay.kill()
                relay.start()
            finally:
                clients.may_go_on.set()
            for thread in clients.threads:
                thread.join()
            relay.wait_until_empty()
        except TimeoutError as error:
            raise TimeoutError(f"{error}, after:\n" + "\n".join(relay.log()[-40:])) from None
        finally:
            relay.kill()
