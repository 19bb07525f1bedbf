"""One run of a script: the world, its relays under a supervisor, the clients, and a record of all.

`Damage` picks its file and octets when it happens. After the last event the story repairs everything: moods,
disks, connections, pauses, held mail, a damaged history. Then all mail has to be gone within the world's
`calm_s`; otherwise the story is stuck.
"""

import asyncio
import contextlib
import contextvars
import errno
import gc
import hashlib
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import psycopg

from relay.clock import SECOND_NS, Clock
from relay.control.operations import OK
from relay.mail.envelope import QueueId
from relay.spool import engines
from relay.spool.identity import Identities
from relay.spool.interface import Full, Unavailable
from relay.verdicts.account import FOREVER_NS, PauseAsked
from tests.fakes.clock import START_WALL_NS, FakeClock
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Platter
from tests.simulation import damage, oracle
from tests.simulation.client import PORT, Client, Copy
from tests.simulation.loop import Life, SimulatedClock, SimulatedLoop, Stuck, sleep_until
from tests.simulation.oracle import Broken
from tests.simulation.past import Blow, Limits, Past, Regime
from tests.simulation.relay import SimulatedDisk, SimulatedHost, SimulatedRelay, SimulatedStore, parsed
from tests.simulation.script import (
    CUT,
    FOR_GOOD_S,
    NO_NEWS,
    Act,
    Crash,
    Damage,
    Disturb,
    Edit,
    Event,
    Feel,
    Script,
    Send,
    SetClock,
)
from tests.simulation.upstream import Ledger, Upstream
from tests.simulation.worlds import PORTS, WORLDS

MAX_TRANSACTION_NS = 180 * SECOND_NS
YEAR_NS = 31_536_000 * SECOND_NS
MAY_END_A_RELAY = (OSError, Full, Unavailable)
"""With these errors a relay exits and its supervisor restarts it. Any other error is a bug."""
LOOK_S = 5.0
LEASE_S = 180


@dataclass
class Outcome:
    lines: list[str] = field(default_factory=list)
    """The events, for people."""
    log: str = ""
    digest: str = ""
    virtual_s: float = 0.0
    accepted: int = 0
    taken: int = 0
    crashes: int = 0


@dataclass
class _Process:
    """A place for a relay, which a supervisor keeps filled."""

    number: int
    host: SimulatedHost
    is_gone: bool = False
    """The relay is gone for good."""
    life: Life | None = None
    relay: SimulatedRelay | None = None

    @property
    def is_up(self) -> bool:
        return self.life is not None and not self.life.is_over and self.relay is not None and self.relay.is_up


class Story:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._world = WORLDS[script.world]
        self._is_fair = all(isinstance(event, Send) for event in script.events)
        self._rng = random.Random(f"run/{script.seed}")
        self._clock = SimulatedClock()
        self._loop = SimulatedLoop(self._clock, self._rng)
        host = SimulatedHost(self._clock, Platter(), self._world.look_s)
        self._processes = [_Process(number, host) for number in range(self._world.relays)]
        self._store: SimulatedStore | None = None
        if self._world.is_shared:
            self._store = SimulatedStore(self._loop)
            for process in self._processes:
                # Each host has its own uptime and calendar.
                up_ns, wrong_ns = self._rng.randrange(YEAR_NS), self._rng.randrange(-YEAR_NS, YEAR_NS)
                # Hosts of one queue must agree on the calendar (docs/several-hosts.md).
                clock = FakeClock(up_ns, START_WALL_NS + (0 if self._world.has_one_queue else wrong_ns))
                process.host = SimulatedHost(clock, Platter(), self._world.look_s)
                self._clock.others.append(clock)
        self._policy = self._world.policies[0]
        names = self._world.upstreams
        ledgers, regimes = {name: Ledger() for name in names}, {name: list[Regime]() for name in names}
        self._past = Past(self._world, script, self._limits(), ledgers, regimes)
        self._upstreams: dict[str, Upstream] = {}
        self._clients: list[Client] = []
        self._faults: list[BaseException] = []
        self._set_aside: list[str] = []
        self._is_damaged = self._is_history_damaged = self._is_booting = False
        self._regime_since_ns = self._disturbed_until_ns = 0
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Run the story. Raises Broken if a promise was not kept; `outcome` then ends there."""
        with contextlib.ExitStack() as patched:
            patched.enter_context(_quietly())
            patched.enter_context(_ids_by_seed(self._rng))
            patched.enter_context(patch.object(engines, "LEAST_LEASE_NS", LEASE_S * SECOND_NS))
            if self._store is not None:
                patched.enter_context(patch.object(psycopg, "connect", self._store.connect))
                later = self._store.connect_later
                patched.enter_context(patch.object(psycopg.AsyncConnection, "connect", later))
            # Errors of killed processes do not count.
            self._loop.set_exception_handler(lambda _loop, _context: None)
            try:
                self._loop.run_until_complete(self._live())
            except Stuck:
                raise Broken(oracle.LIVENESS, "nothing will ever happen again") from None
            finally:
                self._finish()
        self._past.copies = self._copies
        self._past.set_aside = self._set_aside if self._is_damaged else None
        oracle.judge(self._past)
        return self.outcome

    @property
    def _copies(self) -> list[Copy]:
        return [copy for client in self._clients for copy in client.copies]

    @property
    def _disks(self) -> list[SimulatedDisk]:
        return [disk for process in self._processes if process.relay for disk in process.relay.disks]

    async def _live(self) -> None:
        for name, ledger in self._past.ledgers.items():
            most = self._world.most_recipients
            self._upstreams[name] = Upstream(name, PORTS[name], self._loop, ledger, most_recipients=most)
        for process in self._processes:
            ModelDisk(process.host.platter).make_directory("/var/history")
            self._start(process)
        sending: list[asyncio.Task[None]] = []
        for event in self._script.events:
            await sleep_until(int(event.at_s * SECOND_NS))
            self._note(str(event))
            if isinstance(event, Send):
                sending.append(asyncio.create_task(self._send(event)))
            else:
                await self._happen(event)
        await self._calm(sending)

    async def _send(self, event: Send) -> None:
        ports = [PORT + (event.number + each) % self._world.relays for each in range(self._world.relays)]
        ports = ports if self._world.has_one_queue else ports[:1]
        client = Client(self._loop, event, ports, self._world.again_s)
        self._clients.append(client)
        await client.run()
        copy = client.copies[-1]
        self._note(f"the relay took {copy.key}" if copy.is_accepted else f"the relay refused {copy.key}")

    # Events.

    async def _happen(self, event: Event) -> None:
        match event:
            case Act():
                await self._act(event)
            case Feel():
                self._upstreams[event.upstream].feel(event.mood, event.seconds)
                self._disturbed(event.seconds)
            case Edit():
                self._edit(self._world.policies[event.variant])
            case SetClock():
                self._set_clock(event)
            case Disturb():
                self._disturb(event)
            case Crash():
                self._arm(event)
            case Damage():
                self._damage(event)

    async def _act(self, event: Act) -> None:
        process = self._rng.choice(self._processes)
        if not process.is_up:
            return
        relay = process.relay
        assert relay is not None
        clock, orders = self._clock, self._past.orders

        async def act() -> None:
            if event.verb == "pause":
                pause_ns = event.seconds * SECOND_NS
                until_ns = clock.true_ns + pause_ns
                if await relay.operator.pause(event.upstream, PauseAsked("anna", pause_ns)) == OK:
                    orders.paused.append((event.upstream, clock.true_ns, until_ns))
            elif event.verb == "resume":
                orders.resumed.append((event.upstream, clock.true_ns))
                await relay.operator.resume(event.upstream)
            else:
                # Reports that an operator ends are not followed, so none is chosen.
                is_end = event.verb in ("bounce", "delete")
                hosts = self._processes if self._world.has_one_queue else [process]
                ids = sorted(
                    {each for host in hosts for each in _queued(host.relay, with_reports=not is_end)}
                )
                some = self._rng.sample(ids, min(len(ids), 3))
                if some:
                    orders.asked(event.verb, some, clock.true_ns)
                    results = await relay.operator.act(event.verb, some)
                    orders.answered(event.verb, results, clock.true_ns)

        await self._within(process, act)

    def _edit(self, policy: str) -> None:
        if any(process.life is not None and process.life.is_frozen for process in self._processes):
            return  # a frozen process would go on for a moment by its old policy
        now_ns = self._clock.true_ns
        self._end_regime(now_ns)
        # A transaction granted before the edit may still be in progress.
        self._policy, self._regime_since_ns = policy, now_ns + MAX_TRANSACTION_NS
        for process in self._processes:
            relay, life = process.relay, process.life
            if process.is_up and relay is not None and life is not None:
                life.run(self._loop.create_task, relay.edit(self._text(process.number)))

    def _set_clock(self, event: SetClock) -> None:
        by_ns = event.seconds * SECOND_NS
        self._is_booting &= not any(process.is_up for process in self._processes)
        if self._is_booting and event.how == "step":
            return  # set forward while the host is off, it frees slots too early (docs/guarantees.md)
        if event.how in ("suspend", "stop") and by_ns > MAX_TRANSACTION_NS:
            # The relay does not believe the outcome of a transaction from before such a gap.
            self._befalls()
        clock = self._clock if self._store is None else self._rng.choice(self._processes).host.clock
        match event.how:
            case "step of the database":
                assert self._store is not None
                self._store.offset_ns += self._rng.choice((1, -1)) * by_ns
            case "step":
                clock.step_wall(by_ns)
            case "step back":
                clock.step_wall(-by_ns)
            case "suspend":
                self._clock.suspend(by_ns)
            case _:
                self._stop(self._rng.choice(self._processes), event.seconds)

    def _stop(self, process: _Process, seconds: float) -> None:
        """Freeze a process for this time."""
        life = process.life
        if life is None or life.is_over or life.is_frozen:
            return
        life.is_frozen = True
        self._disturbed(seconds)
        self._lapses(life, seconds)

        def go_on() -> None:
            self._note(f"{life.name} goes on")
            if not life.is_over:
                self._loop.thaw(life)

        self._loop.call_later(seconds, go_on)

    def _damage(self, event: Damage) -> None:
        if event.down_s:
            for process in self._processes:
                self._kill(process)
                self._start_later(process, event.down_s)
        found = damage.strike(self._processes[0].host.platter, event)
        if found is not None:
            self._note(f"damaged: {found}")
            self._is_damaged = True
            self._is_history_damaged |= event.where == "history"
            # An end recorded in damaged octets is lost: the message goes again.
            self._befalls()

    def _disturb(self, event: Disturb) -> None:
        if event.how.startswith("connections"):
            self._befalls()
            self._loop.network.cut(is_silent=event.how.endswith("silent"))
            return
        self._disturbed(event.seconds)
        if self._store is not None and event.how.startswith("database"):
            self._disturb_store(self._store, event)
            return
        disks = self._disks
        for disk in disks:
            match event.how:
                case "disk full":
                    disk.is_full = True
                    disk.fail(Fault(1, errno.ENOSPC, forever=True, kinds=frozenset({"write", "open_new"})))
                case "sync fails":
                    kinds = frozenset({"sync", "sync_content", "sync_directory"})
                    disk.fail(Fault(event.nth, errno.EIO, kinds=kinds, drops_pages=event.nth % 2 == 0))
                case _:
                    disk.fail(Fault(event.nth, errno.EIO, kinds=frozenset({"read", "open"})))

        def heal() -> None:
            # Settlements that failed meanwhile wait for the disk.
            self._befalls()
            for disk in disks:
                disk.heal()

        self._loop.call_later(event.seconds, heal)

    def _befalls(self, life: Life | None = None, *, is_late: bool = False) -> None:
        self._past.blows.append(Blow(self._clock.true_ns, life.name if life is not None else "", is_late))

    def _lapses(self, life: Life | None, seconds: float) -> None:
        """Note that a relay, or every relay, can neither settle nor renew a lease for this time."""
        if self._world.has_one_queue and seconds > LEASE_S / 2:
            for at_s, is_late in (0, False), (LEASE_S, False), (seconds, False), (seconds, True):
                self._loop.call_later(at_s, partial(self._befalls, life, is_late=is_late))

    def _disturb_store(self, store: SimulatedStore, event: Disturb) -> None:
        if event.how.endswith("line is lost"):
            store.cut_after["COMMIT" if "COMMIT" in event.how else "statement"] = event.nth
        elif event.how == NO_NEWS:
            store.cut_off(listening=True)
        elif event.how == CUT:
            life = self._rng.choice(self._processes).life
            assert life is not None
            store.cut_hosts.add(life.name)
            store.cut_off(host=life.name)
            self._lapses(life, event.seconds)
            self._loop.call_later(event.seconds, store.cut_hosts.discard, life.name)
        else:
            self._lapses(None, event.seconds)
            store.is_away = True
            if event.how == "database: silent":
                store.cut_off()
            else:
                store.stop()
            self._loop.call_later(event.seconds, setattr, store, "is_away", False)

    def _disturbed(self, seconds: float) -> None:
        until_ns = self._clock.true_ns + int(seconds * SECOND_NS)
        self._disturbed_until_ns = max(self._disturbed_until_ns, until_ns)

    # Processes.

    def _start(self, process: _Process) -> None:
        process.life = life = Life(f"relay {process.number}")
        process.relay = None
        self._note(f"{life.name} starts")
        life.run(self._begin, process, life)

    def _begin(self, process: _Process, life: Life) -> None:
        def on_fault(error: BaseException) -> None:
            self._exit(process, life, error)

        text, port = self._text(process.number), PORT + process.number
        process.relay = relay = SimulatedRelay(self._loop, text, process.host, port, on_fault)

        async def run() -> None:
            await relay.run()
            if relay.is_up and relay.policy_text != self._text(process.number):
                await relay.edit(self._text(process.number))

        self._loop.create_task(run())

    def _exit(self, process: _Process, life: Life, error: BaseException) -> None:
        if life.is_over:
            return
        self._note(f"{life.name} exits: {type(error).__name__}: {error}")
        if not isinstance(error, MAY_END_A_RELAY):
            self._faults.append(error)
        self._kill(process)
        self._start_later(process, self._rng.choice((0.5, 5.0)))

    def _arm(self, event: Crash) -> None:
        process = self._rng.choice(self._processes)
        relay, life = process.relay, process.life
        if relay is None or life is None or life.is_over:
            return
        left = event.steps

        def after() -> None:
            nonlocal left
            left -= 1
            if left <= 0 and not life.is_over:
                self._crash(process, event)

        for disk in relay.disks:
            disk.after = after
        if self._store is not None:
            self._store.after[life] = after

    def _crash(self, process: _Process, event: Crash) -> None:
        """Crash after a change of the disk, in the middle of whatever the process does."""
        self._note(f"{event.kind} of {process.life.name}" if process.life else event.kind)
        self.outcome.crashes += 1
        if event.kind == "kill":
            self._kill(process)
            self._start_later(process, event.down_s)
            return
        host = process.host
        host.platter = self._rng.choice(list(ModelDisk(host.platter).cuts(self._rng, 6))).platter
        if self._store is not None:
            # All other hosts go on.
            self._kill(process, is_told=False)
            host.clock.reboot()
            self._start_later(process, event.down_s + 0.5)
            return
        for each in self._processes:
            self._kill(each)
        self._loop.network.cut(is_silent=False)
        self._is_booting = True
        # The upstreams go on while the host is off.
        self._loop.call_later(event.down_s, self._boot, context=contextvars.Context())

    def _boot(self) -> None:
        for each in self._processes:
            self._kill(each)  # after an earlier kill it may have started meanwhile
        self._clock.reboot()
        self._is_booting = True
        for each in self._processes:
            self._start_later(each, 0.5)

    def _kill(self, process: _Process, *, is_told: bool = True) -> None:
        """Kill a process. `is_told`: the kernel closes its connections."""
        life, relay = process.life, process.relay
        if life is None or life.is_over:
            return
        self._befalls(life)
        if relay is not None:
            self._keep_log(relay)
            for disk in relay.disks:
                disk.detach()
        if self._store is not None:
            self._store.end(life, is_told=is_told)
        self._loop.end(life)

    def _start_later(self, process: _Process, seconds: float) -> None:
        before = process.life
        if seconds >= FOR_GOOD_S:
            process.is_gone = not any(each.is_gone for each in self._processes)
            seconds = 3.0  # one relay must remain
        if process.is_gone:
            return

        def start() -> None:
            if process.life is before:
                self._start(process)

        # In an empty context: the ended life takes no further step.
        self._loop.call_later(seconds, start, context=contextvars.Context())

    async def _within(self, process: _Process, act: Callable[[], Awaitable[None]]) -> bool:
        """Let a process do something; return whether it succeeded and did not die, fail or hang."""
        over: asyncio.Future[bool] = self._loop.create_future()

        async def run() -> None:
            did = True
            try:
                await act()
            except MAY_END_A_RELAY as error:
                self._note(f"the operator is told: {error}")
                did = False
            if not over.done():
                over.set_result(did)

        assert process.life is not None
        running = process.life.run(self._loop.create_task, run())
        await asyncio.wait([over, running], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if running.done() and not running.cancelled() and running.exception() is not None:
            running.result()
        return over.done() and over.result()

    def _text(self, number: int) -> str:
        text = self._policy.replace("{ENGINE}", self._script.engine)
        return text if number == 0 else text.replace("/var/spool", f"/var/spool{number}")

    # The end.

    async def _calm(self, sending: list[asyncio.Task[None]]) -> None:
        await sleep_until(self._disturbed_until_ns)
        self._make_well()
        self._note("from here on all is well")
        began_ns = self._clock.true_ns
        # If only clients act, no operator may have to help.
        self._past.calm_since_ns = FOREVER_NS if self._is_fair else began_ns
        self._past.orders.all_is_released(began_ns)
        calm_s = self._world.calm_s
        while True:
            await asyncio.sleep(max(LOOK_S, calm_s / 400))
            if self._is_history_unusable():
                await self._begin_history_anew()
                began_ns = self._clock.true_ns
            if await self._are_empty() and all(task.done() for task in sending):
                break
            if self._clock.true_ns - began_ns > calm_s * SECOND_NS:
                raise Broken(oracle.LIVENESS, self._what_is_left())
        for task in sending:
            task.result()
        if self._faults:
            raise Broken("no fault of ours", repr(self._faults[0])) from self._faults[0]
        self._end_regime(self._clock.true_ns)

    def _make_well(self) -> None:
        for upstream in self._upstreams.values():
            upstream.calm()
        for disk in self._disks:
            disk.heal()
            disk.after = None
        if self._store is not None:
            self._store.after.clear()

    async def _are_empty(self) -> bool:
        are_empty = [await self._is_empty(each) for each in self._processes if not each.is_gone]
        # Other hosts have to take over the messages of a host that is gone.
        return all(are_empty) and (self._store is None or self._store.tables.count("message") == 0)

    async def _is_empty(self, process: _Process) -> bool:
        if not process.is_up:
            return False
        relay = process.relay
        assert relay is not None
        is_empty = False

        async def look() -> None:
            nonlocal is_empty
            ids = _queued(relay)
            if ids and not self._is_fair:
                await relay.operator.act("release", ids)
            for name in () if self._is_fair else relay.policy.upstreams:
                await relay.operator.resume(name)
            await relay.sender.look()
            is_empty = not ids and relay.sender.queued == 0

        return await self._within(process, look) and is_empty

    def _is_history_unusable(self) -> bool:
        if not self._is_history_damaged:
            return False
        for process in self._processes:
            if process.relay is not None:
                self._keep_log(process.relay)
        return "event=history_failed" in self.outcome.log

    async def _begin_history_anew(self) -> None:
        """Follow docs/operating.md: stop, wait for the longest period, move the file away."""
        self._note("operator: begins the history anew")
        for process in self._processes:
            self._kill(process)
        longest_ns = max(limit.per_ns for limits in self._limits().values() for limit in limits)
        await asyncio.sleep(longest_ns / SECOND_NS)
        for name in self._past.regimes:
            damage.remove(self._processes[0].host.platter, f"/var/history/{name}")
        self._is_history_damaged = False
        for process in self._processes:
            self._start(process)

    def _end_regime(self, now_ns: int) -> None:
        for name, limits in self._limits().items():
            self._past.regimes[name].append(Regime(self._regime_since_ns, now_ns, limits))

    def _limits(self) -> Limits:
        """Return the limits of the policy in force."""
        upstreams = parsed(self._text(0)).upstreams
        return {name: upstream.limits or () for name, upstream in upstreams.items()}

    def _what_is_left(self) -> str:
        left = [
            f"{queued.queue_id} is {queued.state.value}"
            for process in self._processes
            if process.is_up and process.relay is not None
            for queued in process.relay.sender.queue
        ]
        return f"after {self._world.calm_s:g} s {len(left)} are left, such as {left[:5]}"

    def _finish(self) -> None:
        for fiber in list(self._loop.fibers):
            fiber.end()
        for process in self._processes:
            if process.relay is not None:
                self._keep_log(process.relay)
        outcome = self.outcome
        outcome.virtual_s = self._clock.true_ns / SECOND_NS
        outcome.accepted = sum(copy.is_accepted for copy in self._copies)
        outcome.taken = sum(len(ledger.taken) for ledger in self._past.ledgers.values())
        seen = [ledger.seen for ledger in self._past.ledgers.values()]
        ids = [copy.queue_id for copy in self._copies]
        outcome.digest = hashlib.sha256(repr((seen, ids, outcome.lines)).encode()).hexdigest()[:16]
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own, of killed processes
            coroutine = task.get_coro()
            with contextlib.suppress(Exception):
                # Its `finally` blocks run here, without effect on the story.
                coroutine.close()
        self._loop.close()

    def _keep_log(self, relay: SimulatedRelay) -> None:
        self._set_aside += relay.set_aside
        relay.set_aside.clear()
        self.outcome.log += relay.log.getvalue()
        relay.log.seek(0)
        relay.log.truncate()

    def _note(self, what: str) -> None:
        self.outcome.lines.append(f"{self._clock.true_ns / SECOND_NS:10.3f} s  {what}")


def _queued(relay: SimulatedRelay | None, *, with_reports: bool = True) -> list[QueueId]:
    queue = relay.sender.queue if relay is not None and relay.is_up else ()
    return sorted({queued.queue_id for queued in queue if queued.origin.reverse_path or with_reports})


@contextlib.contextmanager
def _ids_by_seed(rng: random.Random) -> Iterator[None]:
    """Draw the random part of queue ids from `rng` instead of the kernel."""
    init = Identities.__init__

    def by_seed(its: Identities, clock: Clock, _: object) -> None:
        init(its, clock, random.Random(rng.random()).randbytes)

    with patch.object(Identities, "__init__", by_seed):
        yield


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress complaints about coroutines that end because their process was killed."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
        gc.collect()
    finally:
        sys.unraisablehook = before
