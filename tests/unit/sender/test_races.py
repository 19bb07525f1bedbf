"""Orders of events in which mail could stand still, go twice, or go where it must not."""

import asyncio
from pathlib import Path

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.policy.database import HistorySettings
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.telemetry.metric_table import Totals
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.smarthost import Script, Smarthost, Turn, Until
from tests.fakes.unsynced import BeforeSync
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of, virtual_clock

LIMIT = ", limits: [{messages: 100, per: 1h}]"
LONG_CONTENT = CONTENT + b"a line of many\r\n" * 40_000


def policy_through(folder: Path, name: str, port: int) -> Policy:
    """Return a policy whose only upstream has this name."""
    text = f"""
spool: ./spool
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams: {{{name}: {{host: 127.0.0.1, port: {port}, tls: none, limits: []}}}}
"""
    return parse_policy(text.encode(), folder / "policy.yaml")


class SuspendedClock:
    """The clocks of a host that is suspended: boottime goes on, the timers of the loop do not."""

    def __init__(self) -> None:
        self._clock = virtual_clock()
        self.slept_ns = 0

    def boottime_ns(self) -> int:
        return self._clock.boottime_ns() + self.slept_ns

    def wall_ns(self) -> int:
        return self._clock.wall_ns() + self.slept_ns

    def boot_id(self) -> str:
        return self._clock.boot_id()


async def turns_of_the_loop(count: int = 50) -> None:
    """Give everything that is ready to run its turn, threads included."""
    for _ in range(count):
        await asyncio.to_thread(lambda: None)


async def test_an_account_that_left_the_policy_and_came_back_keeps_its_operators_pause(
    tmp_path: Path,
) -> None:
    held = asyncio.Event()
    async with Smarthost(Script(mail=[Until(held), "535 5.7.8 account suspended"])) as host:
        policy = policy_through(tmp_path, "isp", host.port)
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until(lambda: any(command.startswith("MAIL") for command in host.commands))
            former = relay.account
            await relay.sender.apply(policy_through(tmp_path, "other", host.port))
            await relay.sender.apply(policy)
            assert await relay.operator.pause("isp", PauseAsked("anna")) == OK
            held.set()
            await relay.until(lambda: former.pausing.state.is_refused)
            await turns_of_the_loop()
        async with Relay(policy) as relay:
            assert relay.account.pausing.state.operator is not None


async def test_what_an_account_learns_after_it_left_the_policy_is_known_when_it_comes_back(
    tmp_path: Path,
) -> None:
    held = asyncio.Event()
    async with Smarthost(Script(mail=[Until(held), "535 5.7.8 account suspended"])) as host:
        policy = policy_through(tmp_path, "isp", host.port)
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until(lambda: any(command.startswith("MAIL") for command in host.commands))
            former = relay.account
            # The other account is at the same host, and has a history of its own.
            other = policy_through(tmp_path, "other", host.port)
            history = HistorySettings(path=tmp_path / "apart")
            apart = other.upstreams["other"].model_copy(update={"history": history})
            await relay.sender.apply(other.model_copy(update={"upstreams": {"other": apart}}))
            held.set()
            await relay.until(lambda: former.pausing.state.is_refused)
            await turns_of_the_loop()
        async with Relay(policy) as relay:
            # A start tries each account that was refused, carefully.
            assert relay.account.pausing.state.is_proving


async def test_no_final_dot_is_sent_after_a_suspend_past_the_deadline(tmp_path: Path) -> None:
    clock = SuspendedClock()

    def data(_: str) -> Turn:
        clock.slept_ns = 7200 * SECOND_NS
        return "354 go ahead"

    async with (
        Smarthost(Script(data=data)) as host,
        Relay(policy_of(tmp_path, host.port, LIMIT), clock=clock) as relay,
    ):
        relay.accept(content=LONG_CONTENT)
        await relay.until_empty()

        assert [r.content for r in host.transactions] == [LONG_CONTENT]
        assert len([command for command in host.commands if command.startswith("MAIL")]) == 2
        assert relay.sender.totals == Totals(accepted=1, relayed=1)


async def test_no_mail_is_sent_after_a_suspend_past_the_deadline(tmp_path: Path) -> None:
    clock = SuspendedClock()

    def sleep(path: str) -> None:
        if "/history/" in path:
            clock.slept_ns = 7200 * SECOND_NS

    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port, LIMIT)
        async with Relay(policy) as relay:  # creates the history
            relay.accept()
            await relay.until_empty()
        async with Relay(policy, BeforeSync(sleep), clock) as relay:
            relay.accept()
            await relay.until(lambda: len(host.relayed) == 2)

        assert len([command for command in host.commands if command.startswith("MAIL")]) == 2
