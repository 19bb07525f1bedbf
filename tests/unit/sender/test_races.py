"""Orders of events in which mail could stand still, go twice, or go where it must not."""

import asyncio
import errno
import functools
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from relay.clock import SECOND_NS, SystemClock
from relay.control.operations import OK, Verb
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.queue.scheduler import State
from relay.sender.spool_thread import Ending, Written
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Message, Note, SpoolBusy, SpoolFault, Status, Totals
from relay.spool.maildir.engine import MaildirSpool
from relay.upstream.connection import Connection
from tests.fakes.before_sync import BeforeSync
from tests.fakes.smarthost import Script, Smarthost, Turn, Until, turns
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of

LIMIT = ", limits: [{messages: 100, per: 1h}]"
LONG_CONTENT = CONTENT + b"a line of many\r\n" * 40_000


def policy_through(folder: Path, name: str, port: int) -> Policy:
    """Return a policy whose only upstream has this name."""
    text = f"""
spool: ./spool
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams: {{{name}: {{host: 127.0.0.1, port: {port}, tls: none}}}}
"""
    return parse_policy(text.encode(), folder / "policy.yaml")


class LeapingClock(SystemClock):
    """The clocks of a host that is suspended: boottime goes on, the timers of the loop do not."""

    def __init__(self) -> None:
        super().__init__()
        self.slept_ns = 0

    def boottime_ns(self) -> int:
        return super().boottime_ns() + self.slept_ns


class FailsOnce(RealDisk):
    """A disk on which one sync of status bytes fails."""

    has_failed = False

    def sync_each(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        if fds and content_only and not self.has_failed:
            self.has_failed = True
            return [OSError(errno.EIO, "Input/output error")] * len(fds)
        return super().sync_each(fds, content_only=content_only)


class NoRoomForNotes(RealDisk):
    """A disk that is so full that no file of notes can be made."""

    is_full = True

    def open_append(self, path: str) -> int:
        if "/bounce/" in path and self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().open_append(path)


async def turns_of_the_loop(count: int = 50) -> None:
    """Give everything that is ready to run its turn, threads included."""
    for _ in range(count):
        await asyncio.to_thread(lambda: None)


async def test_what_a_former_upstream_gives_back_goes_through_the_new_one(
    tmp_path: Path,
) -> None:
    held = asyncio.Event()
    async with (
        Smarthost(Script(mail=[Until(held), "421 4.3.2 going down"])) as old,
        Smarthost() as new,
        Relay(policy_through(tmp_path, "old", old.port)) as relay,
    ):
        relay.accept()
        await relay.until(lambda: any(command.startswith("MAIL") for command in old.commands))
        await relay.sender.apply(policy_through(tmp_path, "new", new.port))
        await turns_of_the_loop()  # the new dispatcher has looked, and sleeps
        held.set()
        await relay.until(lambda: new.relayed)

        assert old.relayed == []


async def test_a_back_off_that_ends_during_a_long_transaction_is_not_missed(tmp_path: Path) -> None:
    held = {name: asyncio.Event() for name in ("one", "two", "slow")}
    refusals = turns("451 4.2.1 not yet")

    def rcpt(argument: str) -> Turn:
        name = argument.removeprefix("TO:<").partition("@")[0]
        return [Until(held[name]), "250 ok"] if name in held else refusals.take()

    async with (
        Smarthost(Script(rcpt=rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, rest="retry: {min: 300ms, max: 300ms, lifetime: 1d}")) as relay,
    ):
        # Both connections are open and idle, so that none that is opened wakes the dispatcher.
        for name in ("one", "two"):
            relay.accept(f"{name}@x.example")
        await relay.until(lambda: sum(command.startswith("RCPT") for command in host.commands) == 2)
        held["one"].set()
        held["two"].set()
        await relay.until_empty()
        quick = relay.accept("quick@x.example")
        await relay.until(lambda: (queued := relay.queued(quick)) and queued.state is State.DEFERRED)
        relay.accept("slow@x.example")
        await relay.until(lambda: any("slow@" in command for command in host.commands))
        await relay.until(lambda: len(host.relayed) == 3)

        assert host.relayed[-1].recipients == ["quick@x.example"]
        held["slow"].set()
        await relay.until(lambda: len(host.relayed) == 4)


async def test_a_stop_waits_for_what_is_being_decided(tmp_path: Path) -> None:
    is_deciding, may_go_on = threading.Event(), threading.Event()

    def wait(path: str) -> None:
        if "/history/" in path:
            is_deciding.set()
            may_go_on.wait()

    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port, LIMIT)
        async with Relay(policy) as relay:  # creates the history
            relay.accept("first@x.example")
            await relay.until_empty()
        relay = Relay(policy, BeforeSync(wait))
        await relay.sender.start()
        relay.accept("second@x.example")
        await relay.until(is_deciding.is_set)
        stopping = asyncio.create_task(relay.__aexit__(None, None, None))
        await turns_of_the_loop()
        may_go_on.set()
        await stopping
        assert relay.faults == []

        async with Relay(policy) as relay:
            await relay.until(lambda: len(host.relayed) == 2)
            await relay.until_empty()
            assert [r.recipients[0] for r in host.relayed] == ["first@x.example", "second@x.example"]
            assert await relay.sender.spool_thread.totals() == Totals(accepted=2, relayed=2)


async def test_nothing_more_is_sent_once_the_disk_failed(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        relay = Relay(policy, FailsOnce())
        recipients = [f"r{number}@x.example" for number in range(20)]
        commands = {relay.accept(recipient): f"RCPT TO:<{recipient}>" for recipient in recipients}
        async with relay:
            with pytest.raises(AssertionError):
                await relay.until(lambda: False)  # ends with the fault
            # Not by their order: they are listed session by session.
            heard = Counter(host.commands)
            # What was begun by then may be on its way to the host.
            under_way = {commands[queue_id] for queue_id in relay.dispatcher.delivery.under_way}
            await turns_of_the_loop()

            assert isinstance(relay.faults[0], SpoolFault)
            named = {each for each in Counter(host.commands) - heard if each.startswith("RCPT")}
            assert named <= under_way


@pytest.mark.parametrize("verb", ["bounce", "delete"])
async def test_what_an_operator_ended_is_gone_from_the_queue(tmp_path: Path, verb: Verb) -> None:
    async with (
        Smarthost(Script(connect="421 not yet")) as host,
        Relay(policy_of(tmp_path, host.port)) as relay,
    ):
        queue_id = relay.accept(sender="")
        await relay.until(lambda: relay.queued(queue_id) and relay.dispatcher.pausing.because)
        assert await relay.operator.act("hold", [queue_id]) == {queue_id: OK}
        assert await relay.operator.act(verb, [queue_id]) == {queue_id: OK}

        assert relay.queued(queue_id) is None


async def test_a_full_disk_keeps_nobody_whose_end_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.sender.spool_thread.RETRY_FULL_SECONDS", 0.01)

    def rcpt(argument: str) -> Turn:
        return "550 5.1.1 nobody" if "bad@" in argument else "250 ok"

    disk = NoRoomForNotes()
    async with (
        Smarthost(Script(rcpt=rcpt)) as host,
        Relay(policy_of(tmp_path, host.port), disk) as relay,
    ):
        good = {relay.accept(f"{number}@x.example") for number in range(10)}
        bad = relay.accept("bad@x.example")
        good |= {relay.accept(f"{number}@x.example") for number in range(10, 20)}
        await relay.until(lambda: len(host.relayed) == 20 and len(relay.sender.queue) == 1)

        assert relay.queued(bad) is not None
        assert all(relay.queued(queue_id) is None for queue_id in good)
        disk.is_full = False


async def test_where_one_end_of_a_batch_cannot_be_written_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.sender.spool_thread.RETRY_FULL_SECONDS", 3600.0)
    disk = NoRoomForNotes()
    async with (
        Smarthost(Script(connect="421 not yet")) as host,
        Relay(policy_of(tmp_path, host.port), disk) as relay,
    ):
        queue_ids = [relay.accept(f"{number}@x.example") for number in range(2)]
        await relay.until(lambda: len(relay.sender.queue) == 2)
        spool_thread = relay.sender.spool_thread
        messages = [m for m in await spool_thread.load(queue_ids) if isinstance(m, Message)]
        note = Note(0, "5.1.1", "bounced", "550 nobody", "x.example", 0)
        refused = asyncio.create_task(
            spool_thread.settle(Ending(messages[0], {0: Status.BOUNCED}, (note,), is_finished=True))
        )
        relayed = asyncio.create_task(
            spool_thread.settle(Ending(messages[1], {0: Status.RELAYED}, (), is_finished=True))
        )
        assert await relayed == Written()
        assert not refused.done()
        refused.cancel()


async def test_one_message_taken_for_an_offence_does_not_keep_the_others(
    tmp_path: Path,
) -> None:
    def mail(argument: str) -> Turn:
        return "550 5.7.1 refused by policy" if "bad@" in argument else "250 ok"

    async with Smarthost(Script(mail=mail)) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        bad = relay.accept(sender="bad@here.example")
        await relay.until(lambda: relay.dispatcher.pausing.because and relay.queued(bad))
        relay.accept(sender="good@here.example")

        def resume() -> bool:
            relay.dispatcher.pausing.end()
            relay.dispatcher.wake()
            return bool(host.relayed)

        await relay.until(resume)

        assert [r.reverse_path for r in host.relayed] == ["good@here.example"]
        assert relay.queued(bad) is not None


async def test_no_final_dot_is_sent_after_a_suspend_past_the_deadline(tmp_path: Path) -> None:
    clock = LeapingClock()

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
        assert await relay.sender.spool_thread.totals() == Totals(accepted=1, relayed=1)


async def test_no_mail_is_sent_after_a_suspend_past_the_deadline(tmp_path: Path) -> None:
    clock = LeapingClock()

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


async def test_a_failed_history_is_told_of_once_and_looked_into_in_its_time(tmp_path: Path) -> None:
    history = tmp_path / "history" / "127.0.0.1"
    history.parent.mkdir()
    history.write_bytes(b"not a history at all\n" * 10)
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, LIMIT)) as relay:
        for number in range(10):
            queue_id = relay.accept(f"r{number}@x.example")
            await relay.until(functools.partial(relay.queued, queue_id))
        await relay.until(lambda: relay.dispatcher.pausing.is_stopped)
        await turns_of_the_loop()
        relay.events.flush()
        log = relay.log.getvalue()
        assert log.count("upstream isp stopped") == log.count("history of isp failed") == 1
        assert relay.dispatcher.pausing.is_stopped

        history.unlink()
        relay.dispatcher.pausing.paused_until_ns = 0
        relay.dispatcher.wake()
        await relay.until_empty()
        relay.events.flush()
        assert relay.log.getvalue().count("upstream isp resumed") == 1
        assert not relay.dispatcher.pausing.because


async def test_a_fault_of_ours_in_opening_is_told_and_tried_again(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        pool = relay.dispatcher.pool
        opener = pool._opener

        async def opened() -> Connection:
            pool._opener = opener
            raise RuntimeError("something that nobody thought of")

        pool._opener = opened
        relay.accept()
        await relay.until(lambda: relay.dispatcher.pausing.because)
        relay.dispatcher.pausing.end()
        relay.dispatcher.wake()
        await relay.until_empty()
        relay.events.flush()

    assert "something that nobody thought of" in relay.log.getvalue()


async def test_an_edit_to_another_account_counts_in_its_history(tmp_path: Path) -> None:
    async with Smarthost() as host:
        limit = ", limits: [{messages: 1, per: 1h}]"
        async with Relay(policy_of(tmp_path, host.port, limit)) as relay:
            relay.accept()
            await relay.until_empty()
            elsewhere = policy_of(tmp_path, host.port, limit + ", history: elsewhere")
            await relay.sender.apply(elsewhere)
            relay.accept()
            await relay.until(lambda: len(host.relayed) == 2)
        async with Relay(elsewhere) as relay:
            relay.accept()
            await relay.until(lambda: len(relay.sender.queue) and relay.dispatcher.throttle.room() == 0)

            assert len(host.relayed) == 2


async def test_the_spool_stays_ours_until_all_is_finished(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        relay = Relay(policy)
        await relay.sender.start()
        await relay.sender.finish()
        with pytest.raises(SpoolBusy):
            MaildirSpool(str(policy.spool), RealDisk(), SystemClock())
        await relay.__aexit__(None, None, None)
        MaildirSpool(str(policy.spool), RealDisk(), SystemClock()).close()


async def test_a_stop_minds_no_upstream_that_retires_just_then(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        upstreams = relay.sender.upstreams

        async def retire() -> None:
            pass

        retiring = asyncio.create_task(retire())
        upstreams._retiring.add(retiring)
        await retiring
        # It has ended; that it leaves the set is what happens next, ahead of what the stop begins.
        retiring.add_done_callback(upstreams._retiring.discard)

        await upstreams.finish()

        assert not upstreams._retiring
        upstreams.in_use.clear()  # they are closed by now


async def test_what_a_former_upstream_is_too_slow_to_end_goes_through_the_new_one(tmp_path: Path) -> None:
    never = asyncio.Event()
    async with (
        Smarthost(Script(rcpt=[Until(never), "250 ok"])) as old,
        Smarthost() as new,
        Relay(policy_through(tmp_path, "old", old.port)) as relay,
    ):
        relay.accept()
        await relay.until(lambda: any(command.startswith("RCPT") for command in old.commands))
        former = relay.sender.upstreams.in_use["old"]
        await relay.sender.apply(policy_through(tmp_path, "new", new.port))
        # Its grace is over.
        await former.stop(0.0)
        await relay.until(lambda: new.relayed)

        assert old.relayed == []
        await relay.until_empty()
