"""The flow from spool to upstream.  Every part is real except the scripted smarthost."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SECOND_NS
from relay.control.operations import ABSENT, OK, UNREAD, NotDone
from relay.mail.envelope import QueueId
from relay.queue.queued import State
from relay.sender import arrivals
from relay.sender.account import GRACE_SECONDS
from relay.verdicts.account import PauseAsked
from tests.fakes.smarthost import CLOSE, Script, Smarthost, Turn, Until, turns
from tests.fakes.unsynced import Unsynced
from tests.fakes.virtual_time import InTurn, pass_time
from tests.unit.sender.in_process_relay import (
    CONTENT,
    PATIENCE_SECONDS,
    AwaitedThread,
    Relay,
    policy_of,
    turns_of_the_loop,
    virtual_clock,
)


async def test_the_delivery_event_of_each_recipient_has_the_message_id(tmp_path: Path) -> None:
    script = Script(rcpt=turns("250 ok", "550 5.1.1 no"))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port), style="json") as relay:
        relay.accept("b@x.example", "c@x.example", content=b"Message-Id:\r\n <1@here.example>\r\n" + CONTENT)
        await relay.until_empty()

    told = [json.loads(line) for line in relay.logged().splitlines()]
    ends = {event["recipient"]: event for event in told if event["event"] == "delivery"}
    assert [ends[each]["message_id"] for each in ("b@x.example", "c@x.example")] == ["<1@here.example>"] * 2
    assert ends["c@x.example"]["text"] == "550 5.1.1 no"


async def test_a_former_account_never_overwrites_the_operators_pause_of_its_successor(tmp_path: Path) -> None:
    held = asyncio.Event()
    async with Smarthost(Script(mail=[Until(held), "535 5.7.8 account suspended"])) as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until(lambda: any(command.startswith("MAIL") for command in host.commands))
            former = relay.account
            renamed = {"other": policy.upstreams["isp"]}
            await relay.sender.apply(policy.model_copy(update={"upstreams": renamed}))
            await relay.sender.apply(policy)
            assert await relay.operator.pause("isp", PauseAsked("anna")) == OK
            held.set()
            await relay.until(lambda: former.pausing.state.is_stopped)
            await turns_of_the_loop()
        async with Relay(policy) as relay:
            assert relay.account.pausing.state.operator is not None


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


async def test_no_final_dot_is_sent_after_a_suspend_past_the_deadline(tmp_path: Path) -> None:
    clock, long = SuspendedClock(), CONTENT + b"a line of many\r\n" * 40_000

    def data(_: str) -> Turn:
        clock.slept_ns = 7200 * SECOND_NS
        return "354 go ahead"

    limit = ", limits: [{messages: 100, per: 1h}]"
    async with (
        Smarthost(Script(data=data)) as host,
        Relay(policy_of(tmp_path, host.port, limit), clock=clock) as relay,
    ):
        relay.accept(content=long)
        await relay.until_empty()

        assert [each.content for each in host.transactions] == [long]
        assert sum(command.startswith("MAIL") for command in host.commands) == 2
        totals = {fate: count for fate, count in relay.sender.totals.items() if count}
        assert totals == {"accepted": 1, "relayed": 1}


@pytest.mark.parametrize("call", ["sync_content", "lock"])
async def test_no_mail_command_is_sent_after_a_suspend_past_the_deadline(tmp_path: Path, call: str) -> None:
    """The message is read again: another host with the same queue may have taken it over meanwhile."""
    clock, limit, times = SuspendedClock(), ", limits: [{messages: 100, per: 1h}]", 0

    def suspend(name: str, path: str) -> None:
        nonlocal times
        if times and name == call and "/history/" in str(Path(path).resolve()):
            clock.slept_ns += 7200 * SECOND_NS
            times -= 1

    disk = Unsynced(suspend)
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, limit), disk, clock) as relay:
        relay.accept()
        await relay.until_empty()
        # At the call that ends the previous slot, and at those that grant the next one.
        times = 3
        relay.accept()
        await relay.until_empty()

        assert times == 0
        # It does not count as an attempt.
        assert "status=deferred" not in relay.logged()
        assert sum(command.startswith("MAIL") for command in host.commands) == len(host.relayed) == 2
        # The slot of the suspended reservation is wasted.
        assert relay.account.throttle.view.usage()[0].used == 2


QUEUED, BATCH = 6, 2


async def test_mail_goes_while_the_queue_is_read_and_unread_messages_are_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "CLAIMED_AT_ONCE", BATCH)
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        before = Relay(policy)
        ids = [before.accept(f"r{number}@there.example") for number in range(QUEUED)]
        await before.sender.read()
        await before.sender.stop()
        before.trigger.close()
        left, gate = BATCH, threading.Event()

        def hold(name: str, path: str) -> None:
            """Open no queued file behind the first batch before the gate is open."""
            nonlocal left
            if name == "open_update" and "/cur/" in path:
                left -= 1
                assert left >= 0 or gate.wait(PATIENCE_SECONDS)

        async with Relay(policy, Unsynced(hold), workers=AwaitedThread) as relay:
            await host.until(lambda: len(host.transactions) == BATCH)
            assert {sent.recipients[0] for sent in host.transactions} == {
                "r0@there.example",
                "r1@there.example",
            }
            assert relay.status_view.snapshot().recovering >= QUEUED - 2 * BATCH
            with pytest.raises(NotDone, match=UNREAD):
                await relay.operator.show(ids[-1])
            assert await relay.operator.act("delete", ids[-1:]) == {ids[-1]: UNREAD}
            with pytest.raises(NotDone, match=UNREAD):
                await relay.operator.plan("", tmp_path / "policy.yaml")
            gate.set()
            await relay.until_empty()
            assert len(host.transactions) == QUEUED
            assert relay.status_view.snapshot().recovering == 0
            with pytest.raises(NotDone, match=ABSENT):
                await relay.operator.show(QueueId("0" * 16))


EACH = 3
"""The upstream takes this many messages in a session."""


def _refusing(host: Smarthost, refusal: Turn, each: int) -> Script:
    """Return a script that refuses MAIL after `each` messages of a session."""

    def mail(_: str) -> Turn:
        sent = sum(command.startswith("MAIL") for command in host.sessions[-1].commands)
        return refusal if sent > each else "250 ok"

    return Script(mail=mail)


@pytest.mark.parametrize(
    "refusal",
    [["421 4.7.0 Too many messages in this session", CLOSE], "452 4.3.2 Enough of this session"],
    ids=["421", "452"],
)
async def test_a_full_session_ends_and_the_next_goes_on_at_once(tmp_path: Path, refusal: Turn) -> None:
    everybody = [f"r{number}@there.example" for number in range(10)]
    async with Smarthost() as host:
        host.script = _refusing(host, refusal, EACH)
        limit = ", limits: [{messages: 100, per: 1h}]"
        async with Relay(policy_of(tmp_path, host.port, limit, connections=1)) as relay:
            for recipient in everybody:
                relay.accept(recipient)
            await relay.until_empty()
            # One slot is spent for each session that ended.
            assert relay.account.throttle.view.usage()[0].used == 13
            assert len(host.sessions) == 4

        assert "paused" not in relay.logged()
        assert "deferred" not in relay.logged()
        # The order of arrival holds behind the refusal too.
        assert [relayed.recipients[0] for relayed in host.relayed] == everybody


@pytest.mark.parametrize(
    ("refusal", "each"),
    [
        ("421 4.7.0 Too many messages", 0),
        ("421 4.7.0 You have sent too many messages, try again in 2 hours", EACH),
        ("452 4.4.5 Daily message limit exceeded", EACH),
    ],
    ids=["first of its session", "asks for time", "names a window"],
)
async def test_a_refusal_of_the_account_is_no_full_session(tmp_path: Path, refusal: str, each: int) -> None:
    async with Smarthost() as host:
        host.script = _refusing(host, refusal, each)
        async with Relay(policy_of(tmp_path, host.port, connections=1)) as relay:
            for number in range(10):
                relay.accept(f"r{number}@there.example")
            await relay.until(lambda: relay.account.pausing.state.why)
            assert len(host.relayed) == each
            assert len(host.sessions) == 1


class HeldHistory:
    """Workers of a host where another process may hold the history until shortly after the grace."""

    is_held = False

    def __call__(self, name: str) -> InTurn:
        return OfHeldHistory(self) if name == "history" else InTurn()


class OfHeldHistory(InTurn):
    def __init__(self, workers: HeldHistory) -> None:
        super().__init__()
        self._workers = workers

    def call(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self._call(function))

    async def _call(self, function: Callable[[], Any]) -> Any:
        if self._workers.is_held:
            await pass_time(GRACE_SECONDS + 8)
        return await super().call(function)


async def test_a_stop_cuts_transactions_off_at_the_end_of_the_grace_though_the_history_is_held(
    tmp_path: Path,
) -> None:
    goes_on, workers = asyncio.Event(), HeldHistory()
    script = Script(mail=lambda sender: [Until(goes_on), "250 ok"] if "slow" in sender else "250 ok")
    async with Smarthost(script) as host:
        async with Relay(policy_of(tmp_path, host.port), workers=workers) as relay:
            for _ in range(6):
                relay.accept()
            await relay.until_empty()
            assert relay.account.pool.idle == 2
            relay.accept(sender="slow@here.example")
            await relay.until(lambda: "slow" in host.commands[-1])
            workers.is_held = True
            other = relay.accept()
            await relay.until(lambda: relay.sender.queue.state_of(other) is State.ACTIVE)
            await pass_time(1)
            asyncio.get_running_loop().call_later(GRACE_SECONDS + 4, goes_on.set)
        await host.until(lambda: goes_on.is_set() and not any(each.is_open for each in host.sessions))
        assert not relay.faults
        assert len(host.relayed) == 6
