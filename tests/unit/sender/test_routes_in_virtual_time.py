"""Whole relays with several upstreams in virtual time: what happens, and at which instants."""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from relay.clock import SECOND_NS
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import CLOSE, Script, Smarthost, Turn
from tests.fakes.virtual_time import VirtualTimeLoop, pass_time
from tests.unit.sender.in_process_relay import Relay
from tests.unit.status.test_eta_of_a_queue import Unsynced

NAMES = ("one", "two", "three")
LIMITS = {"one": (3, 20), "two": (2, 15), "three": (4, 30)}
"""How many messages in how many seconds."""
FAILOVER_SECONDS = 40
ROUTES = (
    f"""
  - {{recipient_domain: two.example, upstreams: [two]}}
  - {{sender: "@lists.example", upstreams: [three, one], failover_after: {FAILOVER_SECONDS}s}}
  - {{upstreams: [one, two, three], failover_after: {FAILOVER_SECONDS}s, spill_after: 10m}}
""",
    f"""
  - {{recipient_domain: one.example, upstreams: [one, three], failover_after: {FAILOVER_SECONDS}s}}
  - {{upstreams: [two, one], failover_after: {FAILOVER_SECONDS}s}}
""",
)


@dataclass
class Upstream:
    """One that notes when it took what, refuses while it is told to, and may hang up behind the dot."""

    name: str
    clock: FakeClock
    taken: list[tuple[int, str]] = field(default_factory=list)
    """When, and by whom it was received."""
    counted_ns: list[int] = field(default_factory=list)
    is_refusing: bool = False
    hang_ups: int = 0
    hung_up: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.host = Smarthost(Script(mail=self._mail, eod=self._eod))

    def _mail(self, _: str) -> Turn:
        self.counted_ns.append(self.clock.boottime_ns())
        return "421 4.3.2 going down" if self.is_refusing else "250 2.1.0 ok"

    def _eod(self, _: str) -> Turn:
        recipients = self.host.transactions[-1].recipients
        self.taken += [(self.clock.boottime_ns(), each) for each in recipients]
        if self.hang_ups:
            self.hang_ups -= 1
            self.hung_up.update(recipients)
            return CLOSE
        return "250 2.0.0 ok"


def policy_of(folder: Path, upstreams: dict[str, Upstream], routes: str) -> Policy:
    accounts = "".join(
        f"  {name}: {{host: 127.0.0.1, port: {each.host.port}, tls: none, connections: 2, "
        f"history: {name}, max_transaction: 3m, limits: [{{messages: {count}, per: {per}s}}]}}\n"
        for (name, each), (count, per) in zip(upstreams.items(), LIMITS.values(), strict=True)
    )
    text = f"""
spool: ./spool
hostname: relay.test
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams:
{accounts}
routes:
{routes}
retry: {{min: 7s, max: 9s, lifetime: 5d}}
"""
    return parse_policy(text.encode(), folder / "policy.yaml")


Deed = Callable[[Relay, dict[str, Upstream], Path], Awaitable[None]]


def played(deed: Deed, routes: str = ROUTES[0]) -> dict[str, Upstream]:
    """Return the upstreams of a relay that did what it was asked to and sent all that it had."""

    async def play(folder: Path) -> dict[str, Upstream]:
        upstreams = {name: Upstream(name, clock) for name in NAMES}
        hosts = [each.host for each in upstreams.values()]
        async with contextlib.AsyncExitStack() as ends:
            for host in hosts:
                await ends.enter_async_context(host)
            relay = Relay(policy_of(folder, upstreams, routes), Unsynced(), clock)
            await ends.enter_async_context(relay)
            await deed(relay, upstreams, folder)
            for _ in range(2000):
                if not len(relay.sender.queue):
                    return upstreams
                await pass_time(10)
            raise AssertionError(f"it never ended:\n{relay.log.getvalue()[-3000:]}")

    clock = FakeClock()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner,
    ):
        return runner.run(play(Path(folder)))


def test_mail_fails_over_at_the_instant_and_not_before() -> None:
    paused_ns: list[int] = []

    async def deed(relay: Relay, _: dict[str, Upstream], __: Path) -> None:
        await relay.operator.pause("one", PauseAsked("anna"))
        paused_ns.append(relay.clock.boottime_ns())
        await pass_time(7)
        relay.accept("early@x.example")
        await pass_time(FAILOVER_SECONDS)
        relay.accept("late@x.example")
        await pass_time(1)

    upstreams = played(deed)
    assert upstreams["one"].taken == []
    (early_ns, early), (_, late) = upstreams["two"].taken
    assert (early, late) == ("early@x.example", "late@x.example")
    assert 0 <= early_ns - paused_ns[0] - FAILOVER_SECONDS * SECOND_NS < SECOND_NS // 100
