"""One relay of a story: all of it but processes, signals and HTTP, on the simulation's ports."""

import asyncio
import contextlib
import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

from relay.control.operator import Operator
from relay.daemon import spool_intake as spool_intake_module
from relay.daemon.spilling import Spilling
from relay.daemon.spool_intake import SpoolIntake
from relay.listener.session import ClientSession
from relay.listener.shared import Reception
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.sender import spool_thread as spool_thread_module
from relay.sender import throttle_thread as throttle_thread_module
from relay.sender.late_mail import LateMail
from relay.sender.sender import Sender
from relay.spool.engines import open_intake, open_spool
from relay.spool.root.trigger import Trigger
from relay.status.snapshot import PolicyStatus
from relay.status.watch import Watch
from relay.telemetry.events import Events
from relay.telemetry.listener_counts import ListenerCounts, ListenerObserver
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Platter
from tests.simulation.loop import SimulatedClock, SimulatedLoop, SimulatedThread


class SimulatedDisk(ModelDisk):
    """One process's view of a platter; its clock is the host's, and it may be full."""

    def __init__(self, platter: Platter, clock: SimulatedClock) -> None:
        self._clock = clock
        self.is_full = False
        super().__init__(platter)

    @property
    def now_ns(self) -> int:
        return self._clock.wall_ns()

    @now_ns.setter
    def now_ns(self, _: int) -> None:
        pass

    def free(self, path: str) -> tuple[int, int | None]:
        return (0, 1000) if self.is_full else super().free(path)

    def detach(self) -> None:
        """Let go of the platter, as a process that died: what it does from now on nobody sees."""
        ours = self.platter
        for inode, holder in list(ours.locks.items()):
            if holder[0] is self:
                del ours.locks[inode]
        self.platter = ours.copy()
        self.after = None
        self.heal()


class SimulatedTrigger(Trigger):
    """A pull that the loop hears of."""

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


@contextlib.contextmanager
def simulated_threads() -> Iterator[None]:
    """Have the relay's threads be those of the loop."""
    modules = (spool_intake_module, spool_thread_module, throttle_thread_module)
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, "CallThread", SimulatedThread))
        stack.enter_context(patch.object(spool_intake_module, "started", lambda *_: _NoPool()))
        yield


class _NoPool:
    def shutdown(self) -> None:
        pass


class SimulatedRelay:
    """Begin within a life: everything here is a part of it."""

    def __init__(
        self,
        loop: SimulatedLoop,
        policy_text: str,
        platter: Platter,
        port: int,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        clock = loop.clock
        self.policy = policy = parsed(policy_text)
        self.disk, self.listener_disk = SimulatedDisk(platter, clock), SimulatedDisk(platter, clock)
        self.log = io.StringIO()
        self.set_aside: list[str] = []
        self._loop = loop
        self._on_fault = on_fault
        self.is_up = False
        events = Events(self.log, "text", clock)
        metrics = Metrics(clock)
        metrics.know_upstreams(policy.upstreams, policy.stand_ins)
        spool = open_spool(
            policy, self.disk, clock, lambda name, why: self.set_aside.append(f"{name}: {why}")
        )
        chance = random.Random(loop.rng.random())
        number = loop.new_reader()
        with patch("os.urandom", chance.randbytes):
            intake = open_intake(policy, self.listener_disk, clock)
        self.intake = SpoolIntake(intake, SimulatedTrigger(loop, number))
        self.sender = Sender(
            spool,
            SimulatedTrigger(loop, number),
            policy=policy,
            hostname="relay.test",
            disk=self.disk,
            telemetry=Telemetry(events, metrics, clock),
            on_fault=on_fault,
        )
        self.watch = Watch(self.sender, policy, "relay.test", clock, PolicyStatus("", 0))
        self.operator = Operator(self.sender, self.watch, events)
        late = LateMail(
            self.sender.queue,
            self.sender.settling,
            clock,
            foresee=lambda: self.watch.listing().messages,
            pausing=self.sender.upstreams.pausing,
        )
        self._chores = (late.run, Spilling(self.sender, self.watch, clock).run, self._look_for_room)
        counts = ListenerCounts([str(listen.address) for listen in policy.listen])
        observer = ListenerObserver(events, counts)
        self._reception = Reception(policy.listen[0], "relay.test", self.intake, observer, clock)
        self._port = port
        self.events = events
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def disks(self) -> tuple[SimulatedDisk, SimulatedDisk]:
        return self.disk, self.listener_disk

    async def run(self) -> None:
        """Start, as the daemon does: take mail, recover, relay."""
        self._loop.network.serve(self._port, lambda: ClientSession(self._reception, "127.0.0.1"))
        try:
            await self.sender.start()
        except Exception as error:  # noqa: BLE001 - the daemon ends, whatever it was
            self._on_fault(error)
            return
        self.is_up = True
        for chore in self._chores:
            self._tasks.append(asyncio.create_task(self.sender.upstreams.guard(chore)))

    async def edit(self, policy_text: str) -> None:
        policy = parsed(policy_text)
        await self.sender.apply(policy)
        self.watch.policy = self.policy = policy

    async def _look_for_room(self) -> None:
        while True:
            await self.intake.look_for_room()
            await asyncio.sleep(2)


def parsed(policy_text: str) -> Policy:
    return parse_policy(policy_text.encode(), Path("/var/policy.yaml"))
