"""One relay of a story: everything except processes, signals and HTTP, on the simulation's ports.

`SimulatedStore` is the database that hosts share: all else goes on while a statement takes its time.
"""

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relay.daemon.assembly import Assembly
from relay.daemon.listener_observer import ListenerObserver
from relay.daemon.spool_intake import spool_intake
from relay.listener.access import Client
from relay.listener.listener_files import read_listener_files
from relay.listener.listener_state import ListenerState
from relay.listener.session import ClientSession
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.sender.host import Host
from relay.spool.disk.durable import Disk
from relay.spool.engines import open_spool
from relay.spool.interface import Spool
from relay.status.snapshot import PolicyStatus
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics, Telemetry
from tests.fakes.clock import START_WALL_NS, FakeClock
from tests.fakes.disk import ModelDisk
from tests.fakes.model_database import ModelDatabase, Session
from tests.fakes.platter import Platter
from tests.simulation.loop import LIFE, Life, SimulatedLoop, SimulatedThread


@dataclass
class SimulatedHost:
    clock: FakeClock
    platter: Platter
    look_s: float
    """Interval of the checks of things that announce no change."""


class SimulatedDisk(ModelDisk):
    """One process's view of a platter. It takes the time from the host's clock, and may be full."""

    def __init__(self, platter: Platter, clock: FakeClock) -> None:
        self._clock = clock
        self.is_full = False
        super().__init__(platter)

    @property
    def now_ns(self) -> int:
        return self._clock.wall_ns()

    def free(self, path: str) -> tuple[int, int | None]:
        return (0, 1000) if self.is_full else super().free(path)

    def heal(self) -> None:
        self.is_full = False
        super().heal()

    def detach(self) -> None:
        """Leave the platter, as a dead process does: no other process sees its later changes."""
        ours = self.platter
        for inode, holder in list(ours.locks.items()):
            if holder[0] is self:
                del ours.locks[inode]
        self.platter = ours.copy()
        self.after = None
        self.heal()


class SimulatedTrigger:
    """A trigger that wakes a reader of the simulated loop."""

    def __init__(self, loop: SimulatedLoop, number: int) -> None:
        self._loop = loop
        self._number = number

    def pull(self) -> None:
        self._loop.wake(self._number)

    def listen(self) -> int:
        return self._number

    def clear(self) -> None:
        pass

    def close(self) -> None:
        pass


KEEPALIVE_S = 25
"""A host learns after this time that a connection is dead."""


class SimulatedStore(ModelDatabase):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(loop.rng)
        self._loop = loop
        self.cut_hosts: set[str] = set()
        """Hosts without a way to the database."""
        self.after: dict[Life | None, Callable[[], None]] = {}
        """For each process: called in the middle of every request it makes."""
        self._lives: dict[Session, Life | None] = {}
        loop.has_fibers = True

    def time_ns(self) -> int:
        return START_WALL_NS + self._loop.clock.true_ns

    def sleep(self, seconds: float) -> None:
        self._loop.pass_time(seconds)
        if (life := LIFE.get()) in self.after:
            self.after[life]()

    def connect(self, url: str, **parameters: object) -> Session:
        session, life = super().connect(url, **parameters), LIFE.get()
        self._lives[session] = life
        if life is not None and life.name in self.cut_hosts:
            session.is_cut_off = True
        return session

    def end(self, life: Life, *, is_told: bool) -> None:
        """End a process's sessions. After a power cut the server is not told."""
        for session in [each for each in self.sessions if self._lives[each] is life]:
            session.is_cut_off = True
            if is_told:
                session.lose()

    def cut_off(self, *, listening: bool = False, host: str = "") -> None:
        """Lose connections silently: all, those that LISTEN, or those of one host."""
        for session, life in [(each, self._lives[each]) for each in self.sessions]:
            if (session.channels or not listening) and (not host or (life is not None and life.name == host)):
                session.is_cut_off = True
                self._loop.call_later(KEEPALIVE_S, session.lose)


class SimulatedRelay:
    """The relay. It must be made within a life, and is part of it."""

    def __init__(
        self,
        loop: SimulatedLoop,
        policy_text: str,
        host: SimulatedHost,
        port: int,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        clock, platter = host.clock, host.platter
        self.policy_text = policy_text
        self.policy = parsed(policy_text)
        self.disk, self.listener_disk = SimulatedDisk(platter, clock), SimulatedDisk(platter, clock)
        self.log = io.StringIO()
        self.set_aside: list[str] = []
        self._loop, self._host, self._port = loop, host, port
        self._on_fault = on_fault
        self.is_up = False
        self.events = Events(self.log, "text", clock)
        self._tasks: list[asyncio.Task[None]] = []

    async def _open(self) -> None:
        loop, policy, events, clock = self._loop, self.policy, self.events, self._host.clock
        metrics = Metrics()
        metrics.know("upstream", policy.upstreams)
        number = loop.new_reader()

        def opened() -> Spool:
            return open_spool(policy, self.disk, clock, self._tell_of_damage)

        def trigger(_root: str, _disk: Disk) -> SimulatedTrigger:
            return SimulatedTrigger(loop, number)

        def host_of(disk: SimulatedDisk) -> Host:
            return Host(clock, disk, SimulatedThread, trigger, self._host.look_s)

        # Calls to a database take time, in a thread.
        spool = await SimulatedThread().call(opened) if loop.has_fibers else opened()
        self.intake = spool_intake(policy, host_of(self.listener_disk), events)
        host, telemetry = host_of(self.disk), Telemetry(events, metrics, clock)
        self._parts = Assembly(
            spool, host, policy, "relay.test", telemetry, PolicyStatus("", 0), self._on_fault
        )
        self.sender, self.status_view = self._parts.sender, self._parts.status_view
        self.operator = self._parts.operator
        metrics.know("listener", [str(listen.address) for listen in policy.listen])
        observer = ListenerObserver(events, metrics, clock)
        listen = policy.listen[0]
        files = read_listener_files(listen)
        self._listener_state = ListenerState(
            listen, "relay.test", self.intake, observer, files=files, clock=clock
        )

    def _tell_of_damage(self, name: str, why: str) -> None:
        self.set_aside.append(f"{name}: {why}")

    @property
    def disks(self) -> tuple[SimulatedDisk, SimulatedDisk]:
        return self.disk, self.listener_disk

    async def run(self) -> None:
        """Start as the daemon does: accept mail, recover, relay."""
        try:
            await self._open()
            self._serve()
            await self.sender.start()
        except Exception as error:  # noqa: BLE001 - any error ends the daemon
            self._on_fault(error)
            return
        self.is_up = True
        for chore in (*self._parts.chores(), self.intake.keep_looking_for_room()):
            self._tasks.append(asyncio.create_task(chore))

    def _serve(self) -> None:
        place = self._listener_state.place_for(Client.of_peer("127.0.0.1"))
        self._loop.network.serve(self._port, lambda: ClientSession(self._listener_state, place))

    async def edit(self, policy_text: str) -> None:
        policy, self.policy_text = parsed(policy_text), policy_text
        await self.sender.apply(policy)
        self.status_view.policy = self.policy = policy


def parsed(policy_text: str) -> Policy:
    return parse_policy(policy_text.encode(), Path("/var/policy.yaml"))
