"""One run: a relay between a client and a hostile upstream, killed and started again, then judged.

`python -m tests.proofs.peers.hostile.run SEED RUN FOLDER` repeats one run and prints findings and trace;
`… SEED FIRST FOLDER STEP SECONDS` makes the runs FIRST, FIRST + STEP … and prints a line of JSON for each.
All that is drawn comes from the seed and the run's number; when a process gets the processor does not.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from relay.control.client import ControlClient
from relay.control.operations import Unreachable
from relay.status.snapshot import UpstreamState
from tests.proofs.peers.hostile import words
from tests.proofs.peers.hostile.client import Client
from tests.proofs.peers.hostile.ledger import Fate, Ledger, now_ns
from tests.proofs.peers.hostile.oracle import Broken, Evidence, Finding, is_dead, judge, served
from tests.proofs.peers.hostile.upstream import USER, HostileUpstream, Terms
from tests.proofs.peers.hostile.voice import Temper
from tests.proofs.peers.warm import Warm, WarmRelay

SECRET = "correct-horse-battery"
DRAIN_S = 20.0
"""How long an honest upstream may have to wait for the last message, beside the windows that all need."""
WINDOWS = 6
"""So many times the windows that one transaction a letter fills: letters are split, and slots wasted."""
DEAD_S = 2.0
"""How long to wait for reports once all who live have their copies; a doubt may last for days."""
RESUMED_EACH_S = 0.3
BLIND_EACH = 5
"""Each so many looks the upstream is used again though it does not rest: a sender may."""
MOST_LINES = 80
"""Of a trace, for one finding."""
STAGES = ("mail", "rcpt", "data", "dot", "told")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is drawn for one run."""

    seed: str
    count: int
    period_s: float
    connections: int
    pipelining: bool
    has_auth: bool
    max_transaction_s: float
    letters: int
    pause_s: float
    hostile_s: float
    kills: tuple[tuple[str, float], ...]
    """Each at a stage of the so-manieth transaction, or "after" so many seconds."""
    edits_s: tuple[float, ...]
    counts_at: str
    scope: str


STEADY = {"tempers": (Temper.PLAIN, Temper.LAWFUL), "weights": (1, 1), "flaps": False}
BREAKING = (Temper.PLAIN, Temper.LAWFUL, Temper.BREAKING, Temper.ABOUT_US)
SCOPES: dict[str, dict[str, Any]] = {
    "all": {},
    "breaking": {"tempers": BREAKING, "weights": (20, 10, 50, 20), "flaps": False},
    "counting": {"tempers": (Temper.PLAIN, Temper.COUNTING), "weights": (1, 4), "flaps": False},
    "echoes": STEADY,
    "flaps": STEADY | {"flaps": True},
}
"""What may be drawn: all, or one kind of hostility with kills, to see one hole behind another."""
WITH_ECHOES = {"all", "echoes"}


def plan(seed: str, run: int, scope: str = "all") -> Plan:
    """Draw a run."""
    dice = random.Random(f"{seed}/{run}")
    hostile_s = dice.uniform(2.0, 4.0)
    kills: list[tuple[str, float]] = []
    for _ in range(dice.choice([0, 1, 1, 2, 3])):
        if dice.random() < 0.6:
            kills.append((dice.choice(STAGES), float(dice.randint(1, 20))))
        else:
            kills.append(("after", dice.uniform(0.2, hostile_s + 1)))
    return Plan(
        seed=f"{seed}/{run}",
        count=dice.randint(4, 16),
        period_s=dice.choice([0.5, 1.0, 1.5]),
        connections=dice.randint(1, 4),
        pipelining=dice.random() < 0.5,
        has_auth=dice.random() < 0.3,
        max_transaction_s=dice.choice([1.5, 2.5]),
        letters=dice.randint(8, 28),
        pause_s=dice.choice([0.0, 0.02, 0.1]),
        hostile_s=hostile_s,
        kills=tuple(kills),
        edits_s=tuple(dice.uniform(0.3, hostile_s) for _ in range(dice.choice([0, 0, 0, 1, 2]))),
        counts_at=dice.choice(["mail", "dot"]),
        scope=scope,
    )


@dataclass(slots=True)
class Result:
    """What came of a run."""

    seed: str
    findings: list[Finding]
    counts: Counter[str]
    took_s: float
    trace: Path
    relevant: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        found = [[each.promise.value, each.text] for each in self.findings]
        return json.dumps(
            {"seed": self.seed, "found": found, "counts": self.counts, "took_s": round(self.took_s, 2),
             "trace": str(self.trace), "relevant": self.relevant}
        )  # fmt: skip


class Run:
    """One relay's hard life."""

    def __init__(self, drawn: Plan, warm: Warm, folder: Path) -> None:
        self.plan = drawn
        self.ledger = Ledger()
        self.kills_ns: list[tuple[int, int]] = []
        self.counts: Counter[str] = Counter()
        self._folder = folder
        self._findings: list[Finding] = []
        self._stages: Counter[str] = Counter()
        self._staged = {(stage, int(nth)) for stage, nth in drawn.kills if stage != "after"}
        self._lock = threading.Lock()
        self._is_killed = False
        self._looks = 0
        terms = Terms(
            seed=drawn.seed,
            count=drawn.count,
            period_s=drawn.period_s,
            longest_s=drawn.max_transaction_s,
            counts_at=drawn.counts_at,
            has_auth=drawn.has_auth,
            **SCOPES[drawn.scope],
        )
        self.upstream = HostileUpstream(terms, self.ledger, self._at)
        self._warm = warm
        self._edits = random.Random(f"{drawn.seed}/edits")

    def carry_out(self) -> Result:
        """Do it and judge it."""
        drawn, began_s = self.plan, time.monotonic()
        dice = random.Random(f"{drawn.seed}/letters")
        echoes = drawn.scope in WITH_ECHOES
        letters = (words.letter(dice, number, echoes=echoes) for number in range(drawn.letters))
        with self.upstream:
            self.relay = WarmRelay(self._warm, self._folder, {"isp": self._policy_of_upstream()}, http=None)
            try:
                self._start()
                with Client(self.relay.port, letters, self.upstream.know, drawn.pause_s) as client:
                    self._live(client)
                self.upstream.become_honest()
                evidence = self._evidence(client)
                self._drain(evidence)
                self._end()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    self.relay.kill()
            self._look_at_queue(evidence)
            evidence.log = self.relay.log()
        self._findings += judge(evidence)
        if any(SECRET in line for line in evidence.log):
            self._findings.append(Finding(Broken.LEAKED, "the password is in the log"))
        self._count(evidence, client)
        return self._result(evidence, time.monotonic() - began_s)

    def _policy_of_upstream(self) -> dict[str, Any]:
        drawn = self.plan
        auth = {"auth": {"user": USER, "password_env": "HOSTILE_PASSWORD"}} if drawn.has_auth else {}
        return auth | {
            "host": "127.0.0.1",
            "port": self.upstream.port,
            "tls": "none",
            "connections": drawn.connections,
            "pipelining": drawn.pipelining,
            "max_transaction": f"{round(drawn.max_transaction_s * 1000)}ms",
            "limits": [{"messages": drawn.count, "per": f"{round(drawn.period_s * 1000)}ms"}],
        }

    def _start(self) -> None:
        self.ledger.tell("-- the relay is started")
        with self._lock:
            self._is_killed = False
        self.relay.start(HOSTILE_PASSWORD=SECRET, RELAY_LOG="json")

    def _at(self, stage: str) -> None:
        self._stages[stage] += 1
        if (stage, self._stages[stage]) in self._staged:
            self._kill(f"at {stage}")

    def _kill(self, why: str) -> None:
        with self._lock:
            if self._is_killed:
                return
            self._is_killed = True
        before_ns = now_ns()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.relay.pid, signal.SIGKILL)
        self.kills_ns.append((before_ns, now_ns()))
        self.ledger.tell(f"-- SIGKILL {why}")

    def _live(self, client: Client) -> None:
        """Have everything happen for as long as the upstream is hostile, and mail is handed over."""
        began_s = time.monotonic()
        due = sorted([(after_s, "kill") for kind, after_s in self.plan.kills if kind == "after"]
                     + [(after_s, "edit") for after_s in self.plan.edits_s])  # fmt: skip
        resumed_s = began_s
        while (now_s := time.monotonic()) < began_s + self.plan.hostile_s or not client.is_done:
            if now_s > began_s + 30:
                raise TimeoutError(f"{self.plan.seed}: the client is not done")
            while due and due[0][0] <= now_s - began_s:
                _, kind = due.pop(0)
                if kind == "kill":
                    self._kill("by the clock")
                else:
                    self._edit()
            self._restart()
            if now_s > resumed_s + RESUMED_EACH_S:
                self._resume()
                resumed_s = now_s
            time.sleep(0.02)
        self._restart()

    def _restart(self) -> None:
        """Start the relay again if it is gone; it must not be gone by itself."""
        if (status := self.relay._started().poll()) is None:
            return
        if not self._is_killed:
            self._findings.append(Finding(Broken.DIED, f"exit status {status}", (), now_ns()))
        self._start()

    def _edit(self) -> None:
        """Edit what changes nothing that the upstream allows."""
        upstream = self.relay.policy["upstreams"]["isp"]
        count = self._edits.randint(max(1, self.plan.count // 2), self.plan.count)
        upstream["limits"] = [{"messages": count, "per": f"{round(self.plan.period_s * 1000)}ms"}]
        upstream["connections"] = self._edits.randint(1, self.plan.connections)
        upstream["pipelining"] = self._edits.random() < 0.5
        self.relay.write_policy()
        self.ledger.tell(f"-- the policy says {count} messages")
        self.counts["edits"] += 1

    def _resume(self) -> None:
        """Be the operator who does not wait for the end of a pause."""
        with contextlib.suppress(Unreachable, OSError):
            self._looks += 1
            is_blind = self._looks % BLIND_EACH == 0
            if asyncio.run(_resumed(self.relay.folder / "spool", is_blind=is_blind)):
                self.counts["resumed"] += 1

    def _files(self) -> list[Path]:
        spool = self.relay.folder / "spool"
        folders = [spool / "new", spool / "hold", spool / "corrupt", *(spool / "cur").iterdir()]
        return [each for folder in folders if folder.is_dir() for each in folder.iterdir()]

    def _drain(self, evidence: Evidence) -> None:
        """Wait until the queue is empty, or only the dead are left."""
        began_s = time.monotonic()
        living = {
            f"n{number}k{index}"
            for number, indices in evidence.acknowledged.items()
            for index in indices
            if not is_dead(evidence, f"n{number}k{index}")
        }
        done_s = None
        longest_s = DRAIN_S + WINDOWS * self.plan.period_s * len(evidence.acknowledged) / self.plan.count
        while self._files():
            self._restart()
            self._resume()
            got = served(self.ledger)
            now_s = time.monotonic()
            if living <= got:
                done_s = done_s or now_s
                if now_s > done_s + DEAD_S:
                    return
            if now_s > began_s + longest_s:
                left = sorted(living - got)
                text = f"after {longest_s:.0f} s {left} wait"
                self._findings.append(Finding(Broken.STUCK, text, tuple(left), now_ns()))
                return
            time.sleep(RESUMED_EACH_S / 2)
        self.counts["drained"] += 1

    def _end(self) -> None:
        self.ledger.tell("-- SIGTERM")
        if (status := self.relay.stop()) != 0 and not self._is_killed:
            self._findings.append(Finding(Broken.DIED, f"exit status {status} at SIGTERM", (), now_ns()))

    def _evidence(self, client: Client) -> Evidence:
        drawn = self.plan
        return Evidence(
            ledger=self.ledger,
            acknowledged=dict(client.acknowledged),
            attempted=client.attempted,
            count=drawn.count,
            period_s=drawn.period_s,
            connections=drawn.connections,
            max_transaction_s=drawn.max_transaction_s,
            kills_ns=self.kills_ns,
        )

    def _look_at_queue(self, evidence: Evidence) -> None:
        """Ask what is left, as an operator would; what a report is about is in its file alone."""
        files = self._files()
        for path in files:
            found = re.findall(rb"^Final-Recipient: .*?n([0-9]+)k([0-9]+)", path.read_bytes(), re.MULTILINE)
            evidence.reports_queued |= {f"n{n.decode()}k{k.decode()}" for n, k in found}
            if path.parent.name == "corrupt":
                self._findings.append(Finding(Broken.LOST, f"{path.name} is called corrupt"))
        if not files:
            return
        listed = self.relay.command("queue", "--json").stdout.splitlines()
        ids = [json.loads(line)["queue_id"] for line in listed]
        shown = self.relay.command("queue", "show", "--json", *ids).stdout.splitlines() if ids else []
        for line in shown:
            self.ledger.tell(f"-- queued: {line}")
            for each in json.loads(line)["recipient_statuses"]:
                found_one = words.TAG.search(each["address"])
                if found_one and each["status"] in ("to do", "bounced", "expired"):
                    evidence.queued.add(found_one[0])

    def _count(self, evidence: Evidence, client: Client) -> None:
        taken = [one for one in self.ledger.transactions if one.fate is Fate.TAKEN]
        self.counts.update(
            runs=1,
            kills=len(self.kills_ns),
            letters=len(client.acknowledged),
            unacknowledged=len(client.attempted) - len(client.acknowledged),
            transactions=len(self.ledger.transactions),
            taken=len(taken),
            reports=sum(not one.sender for one in taken),
            replies=len(self.ledger.uttered),
            faulty_connections=len(self.ledger.faulty_from_ns),
            dropped_unheard=self.ledger.dropped_unheard,
            stalls=len(self.ledger.stalls_ns),
            left=len(evidence.queued),
            refused_by_relay=len(client.refused),
        )

    def _result(self, evidence: Evidence, took_s: float) -> Result:
        path = self._folder / "trace"
        trace = merged(self.ledger, evidence.log)
        path.write_text("\n".join(trace) + "\n")
        firsts = {found.promise: found for found in reversed(self._findings)}.values()
        relevant = [line for found in firsts for line in about(found, trace, evidence)]
        return Result(self.plan.seed, self._findings, self.counts, took_s, path, relevant)


def merged(ledger: Ledger, log: Any) -> list[str]:
    """Return who said what when, with what the relay logged in between."""
    offset_ns = time.time_ns() - now_ns()
    told = list(ledger.trace)
    for line in log:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            event = json.loads(line)
            at_ns = round(datetime.fromisoformat(event["time"]).timestamp() * 1e9) - offset_ns
            rest = {key: value for key, value in event.items() if key not in ("time", "level", "upstream")}
            told.append((at_ns, f"relay {json.dumps(rest)}"))
    begin_ns = min((at_ns for at_ns, _ in told), default=0)
    return [f"{(at_ns - begin_ns) / 1e9:8.4f} {text[:600]}" for at_ns, text in sorted(told)]


def about(found: Finding, trace: list[str], evidence: Evidence) -> list[str]:
    """Return the lines of a trace that a finding is about: the recipient's transactions, whole, and kills."""
    addresses = [
        evidence.attempted[int(tag[1])].recipients[int(tag[2])].address
        for name in found.names
        if (tag := words.TAG.fullmatch(name))
    ]
    wanted = [each for each in (*addresses, *found.names) if each]
    kept: list[str] = []
    blocks: dict[str, list[list[str]]] = {}
    for line in trace:
        who = line.split()[1]
        if not who.startswith("c"):
            if " -- " in line or any(each in line for each in wanted):
                kept.append(line)
            continue
        # From MAIL to the next one: what of a connection belongs together.
        if who not in blocks or " >> MAIL" in line:
            blocks.setdefault(who, []).append([])
        blocks[who][-1].append(line)
    for block in (each for of_one in blocks.values() for each in of_one):
        if any(each in said for said in block for each in wanted):
            kept += block
    return [f"=== {found}", *sorted(kept, key=lambda line: float(line.split()[0]))[:MOST_LINES]]


async def _resumed(spool: Path, *, is_blind: bool) -> bool:
    """Use the upstream again if it rests, or senders may; return whether it was so ordered."""
    client = ControlClient(spool)
    try:
        snapshot = await client.snapshot()
        if not is_blind and all(each.state is UpstreamState.OPEN for each in snapshot.upstreams):
            return False
        await client.resume("isp")
        return True
    finally:
        await client.close()


def carry_out(seed: str, run: int, warm: Warm, folder: Path, scope: str = "all") -> Result:
    """Do one run in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)  # a spool of an earlier run would be its own past
    folder.mkdir(parents=True)
    return Run(plan(seed, run, scope), warm, folder).carry_out()


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(seed: str, first: str, folder: str, *more: str) -> None:
    """Do one run, or several and go on."""
    scope = os.environ.get("HOSTILE_SCOPE", "all")
    with Warm() as warm:
        if not more:
            result = carry_out(seed, int(first), warm, Path(folder), scope)
            _print("\n".join(result.relevant))
            _print(f"{result.seed} {dict(result.counts)} {result.took_s:.1f} s {result.trace}")
            _print("\n".join(map(str, result.findings)) or "nothing is broken")
            return
        step, seconds = int(more[0]), float(more[1])
        run, until_s = int(first), time.monotonic() + seconds
        last = int(more[2]) if len(more) > 2 else 1 << 30
        while run < last and time.monotonic() < until_s:
            place = Path(folder) / f"run{run}"
            try:
                result = carry_out(seed, run, warm, place, scope)
                _print(result.as_json())
            except (TimeoutError, ChildProcessError, subprocess.SubprocessError) as error:
                _print(json.dumps({"seed": f"{seed}/{run}", "error": repr(error)}))
                return
            if not result.findings:
                shutil.rmtree(place)
            run += step


if __name__ == "__main__":
    main(*sys.argv[1:])
