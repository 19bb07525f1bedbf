"""Mail goes by its routes: elsewhere while one is down, by another sender, past what an upstream lacks."""

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.mail.envelope import QueueId
from relay.policy.database import HistorySettings
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.queue.queued import Queued, State
from relay.sender.attempt import APART_NS
from relay.sender.pausing import Pausing
from relay.smtp.reply import Phase
from relay.status.collector import SnapshotCollector
from relay.status.snapshot import to_json
from relay.verdicts.account import PauseAsked
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import CLOSE, DEFAULT, Script, Smarthost, Turn, turns
from tests.fakes.unsynced import Unsynced
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of, virtual_clock
from tests.unit.sender.test_sender import turns_of_the_loop

LASTING = PauseAsked("anna")
MINUTE_NS = 60 * SECOND_NS


def routed(folder: Path, ports: dict[str, int], routes: str, rest: str = "") -> Policy:
    upstreams = "".join(
        f"  {name}: {{host: 127.0.0.1, port: {port}, tls: none, connections: 2, history: {name}, "
        "shield: null, limits: []}\n"
        for name, port in ports.items()
    )
    text = f"""
spool: ./spool
hostname: relay.test
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams:
{upstreams}
routes:
{routes}
{rest or "retry: {min: 50ms, max: 100ms, lifetime: 1d}"}
"""
    return parse_policy(text.encode(), folder / "policy.yaml")


def pausing(relay: Relay, name: str) -> Pausing:
    return relay.sender.upstreams.in_use[name].pausing


def recipients(host: Smarthost) -> list[str]:
    return sorted(each for mail in host.relayed for each in mail.recipients)


async def leap(relay: Relay, clock: FakeClock, span_ns: int) -> None:
    """Let time pass, as after a suspend: every account looks again."""
    clock.advance(span_ns)
    relay.sender.upstreams.wake()
    relay.sender.reroute()
    await turns_of_the_loop()


BOTH = "  - {upstreams: [one, two]}"


async def test_an_unknown_outcome_stays_with_its_upstream_to_the_deadline(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(eod=turns(CLOSE))) as one, Smarthost() as two:
        routes = "  - {upstreams: [one, two], failover_after: 1m}"
        policy = routed(tmp_path, {"one": one.port, "two": two.port}, routes)
        async with Relay(policy) as relay:
            queue_id = relay.accept("a@x.example")
            await relay.until(lambda: (part := relay.queued(queue_id)) and part.past.unknown_until_ns)
            await relay.operator.pause("one", LASTING)
            other = relay.accept("b@x.example")
            await relay.until(lambda: relay.queued(other))
            await leap(relay, clock, 20 * MINUTE_NS)
            await relay.until(lambda: len(relay.sender.queue) == 1)
            assert recipients(two) == ["b@x.example"]
            (shown,) = await relay.listed()
            assert (shown.upstream, shown.upstream_because) == ("one", "unknown: one may have relayed it")
            await leap(relay, clock, 11 * MINUTE_NS)
            await relay.until_empty()

    # Perhaps twice: that is the window between the final dot and its reply.
    assert recipients(two) == ["a@x.example", "b@x.example"]
    assert len(one.transactions) == 1


TO_ONE, TO_TWO = "  - {upstreams: [one]}", "  - {upstreams: [two]}"


def with_another_account(policy: Policy) -> Policy:
    history = HistorySettings(path=policy.spool.parent / "another")
    another = policy.upstreams["one"].model_copy(update={"history": history})
    return policy.model_copy(update={"upstreams": {**policy.upstreams, "one": another}})


@pytest.mark.parametrize("edit", ["its route", "the upstream is removed", "the upstream has another account"])
async def test_what_waited_for_a_refused_account_is_no_older_after_an_edit(tmp_path: Path, edit: str) -> None:
    later = "451 4.3.0 later"
    async with Smarthost(Script(rcpt=turns(later))) as one, Smarthost(Script(rcpt=turns(later))) as two:
        ports, retry = {"one": one.port, "two": two.port}, "retry: {min: 10m, max: 10m, lifetime: 30m}"
        policy = routed(tmp_path, ports, TO_ONE, retry)
        async with Relay(policy) as relay:
            pausing(relay, "one").rest(Answer(Verdict.STOP, Phase.AUTH, None, "535 account closed"))
            relay.accept("a@x.example")
            await relay.until(lambda: len(relay.sender.queue))
            await leap(relay, virtual_clock(), 50 * MINUTE_NS)
            match edit:
                case "its route":
                    policy = routed(tmp_path, ports, TO_TWO, retry)
                case "the upstream is removed":
                    policy = routed(tmp_path, {"two": two.port}, TO_TWO, retry)
                case _:
                    policy = with_another_account(policy)
            await relay.sender.apply(policy)
            await relay.until_empty()
            assert relay.sender.totals.expired == 0
    assert recipients(one) + recipients(two) == ["a@x.example"]


class GivesNothing(Unsynced):
    """A disk that for a while gives no message, or keeps who asks for one waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.fails, self.gives, self.asked = False, threading.Event(), 0
        self.gives.set()

    def open_read(self, path: str) -> int:
        if "/cur/" in path:
            self.asked += 1
            if self.fails:
                raise OSError(errno.EIO, "Input/output error")
            self.gives.wait()
        return super().open_read(path)


async def wait_unread(relay: Relay, count: int) -> list[QueueId]:
    """Queue messages of which nothing is in memory, behind upstreams that are paused."""
    for name in relay.sender.upstreams.in_use:
        await relay.operator.pause(name, LASTING)
    ids = [relay.accept(f"r{number}@x.example") for number in range(count)]
    await relay.until(lambda: len(relay.sender.queue) == count)
    for queue_id in ids:
        relay.sender.spool_thread.forget(queue_id)
    return ids


async def test_an_edit_of_lanes_ends_no_back_off_of_a_message_in_parts(tmp_path: Path) -> None:
    later = Script(rcpt=turns("451 4.3.0 later"))
    routes = "  - {recipient_domain: x.example, upstreams: [one]}\n" + TO_TWO
    lanes = "lanes:\n  fast: {sender: a@here.example, share: 60}\nretry: {min: 1h, max: 2h, lifetime: 1d}"
    async with Smarthost(later) as one, Smarthost(Script(rcpt=turns("451 4.3.0 later"))) as two:
        ports = {"one": one.port, "two": two.port}
        async with Relay(routed(tmp_path, ports, routes, "retry: {min: 1h, max: 2h, lifetime: 1d}")) as relay:
            queue_id = relay.accept("a@x.example", "b@y.example")

            def seen() -> list[tuple[str, State, int, str]]:
                parts = relay.sender.queue.parts(queue_id)
                return [(part.lane, part.state, part.due_at_ns, part.reason) for part in parts]

            await relay.until(lambda: [each[1] for each in seen()] == [State.DEFERRED] * 2)
            before = seen()
            await relay.sender.apply(routed(tmp_path, ports, routes, lanes))
            await relay.until(lambda: seen()[0][0] == "fast")
            assert [each[1:] for each in seen()] == [each[1:] for each in before]


async def test_what_cannot_be_read_as_an_edit_sorts_it_is_sorted_once_it_can(tmp_path: Path) -> None:
    disk = GivesNothing()
    async with (
        Smarthost() as one,
        Relay(routed(tmp_path, {"one": one.port, "two": 9}, TO_TWO), disk) as relay,
    ):
        damaged, _ = await wait_unread(relay, 2)
        disk.fails = True
        await relay.sender.apply(routed(tmp_path, {"one": one.port}, TO_ONE))
        await relay.until(lambda: disk.asked)
        (path,) = relay.policy.spool.glob(f"cur/*/{damaged}")
        path.write_bytes(b"?")
        disk.fails = False
        await relay.operator.resume("one")
        await relay.until_empty()
    assert recipients(one) == ["r1@x.example"]


async def test_mail_that_an_edit_finds_unreadable_is_read_again_after_a_minute(tmp_path: Path) -> None:
    disk, ports = GivesNothing(), {"one": 9, "two": 9}
    async with Relay(routed(tmp_path, ports, TO_TWO), disk) as relay:
        await wait_unread(relay, 2)
        disk.fails = True
        await relay.sender.apply(routed(tmp_path, ports, TO_ONE))
        await relay.until(lambda: disk.asked == 2)
        failed_at_ns = relay.clock.boottime_ns()
        await relay.until(lambda: disk.asked > 2)
        assert relay.clock.boottime_ns() - failed_at_ns >= MINUTE_NS


async def test_what_is_sorted_late_goes_by_an_edit_that_came_meanwhile(tmp_path: Path) -> None:
    disk, count, ports = GivesNothing(), 250, {"one": 9, "two": 9}
    policy = routed(tmp_path, ports, TO_TWO)
    async with Relay(policy, disk, is_threaded=True) as relay:
        await wait_unread(relay, count)
        disk.fails = True
        await relay.sender.apply(routed(tmp_path, ports, TO_ONE))
        await relay.until(lambda: disk.asked == count)
        disk.fails, disk.asked = False, 0
        disk.gives.clear()
        await relay.until(lambda: disk.asked)
        await relay.sender.apply(policy)
        disk.gives.set()
        await relay.until(lambda: disk.asked > count)
        await turns_of_the_loop()
        assert {part.upstream for part in relay.sender.queue} == {"two"}


async def test_mail_that_has_waited_too_long_goes_to_the_next_upstream_that_is_usable(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost() as one, Smarthost() as two:
        routes = "  - {upstreams: [one, two], spill_after: 30m}"
        policy = routed(tmp_path, {"one": one.port, "two": two.port}, routes)
        async with Relay(policy_with_limit(policy, "one", "{messages: 2, per: 1h}")) as relay:
            await relay.operator.pause("two", LASTING)
            for number in range(4):
                relay.accept(f"r{number}@x.example")
            await relay.until(lambda: len(one.relayed) == 2 and len(relay.sender.queue) == 2)
            await leap(relay, clock, 32 * MINUTE_NS)
            late = relay.accept("late@x.example")
            await relay.until(lambda: relay.queued(late))
            assert not two.relayed, "there is nowhere to go"
            assert await relay.operator.resume("two") == OK
            await relay.until(lambda: len(two.relayed) == 2)
            relay.events.flush()
            assert "instead of one: spill" in relay.log.getvalue()

            await leap(relay, clock, 29 * MINUTE_NS)
            await relay.until_empty()
        # It was for less than half an hour in line when the first one had room again.
        assert "late@x.example" in recipients(one)


LARGE = CONTENT + b"x" * 5000 + b"\r\n"
NO_ROOM_FOR_LARGE = "{bytes: 6000, per: 1h}"
ONE_CONNECTION = {"connections": 1}


def _has_no_room(queued: Queued | None) -> bool:
    return queued is not None and queued.state is State.WAITING and "limit" in queued.reason


async def test_what_stands_behind_mail_that_spilled_goes_at_once(tmp_path: Path) -> None:
    routes = (
        '  - {sender: "owner@here.example", upstreams: [one]}\n  - {upstreams: [one, two], spill_after: 1m}'
    )
    async with Smarthost() as one, Smarthost() as two:
        policy = routed(tmp_path, {"one": one.port, "two": two.port}, routes)
        policy = policy_with_limit(policy, "one", NO_ROOM_FOR_LARGE, **ONE_CONNECTION)
        async with Relay(policy) as relay:
            relay.accept("first@x.example", content=LARGE)
            await relay.until_empty()
            large = relay.accept("large@x.example", content=LARGE)
            await relay.until(lambda: _has_no_room(relay.queued(large)))
            small = relay.accept("small@x.example", sender="owner@here.example")
            await relay.until(lambda: relay.queued(small))

            began_ns = relay.clock.boottime_ns()
            await relay.until_empty()
            assert relay.clock.boottime_ns() - began_ns < 70 * SECOND_NS
        assert recipients(two) == ["large@x.example"]
        assert recipients(one) == ["first@x.example", "small@x.example"]


async def test_a_message_that_spills_wakes_the_line_that_it_goes_to_and_the_one_that_it_left(
    tmp_path: Path,
) -> None:
    """Both were asleep for an hour: one at its limit, the other without mail."""
    routes = (
        "  - {sender: 'owner@here.example', upstreams: [one]}\n  - {upstreams: [one, two], spill_after: 1m}"
    )
    async with Smarthost() as one, Smarthost() as two:
        policy = routed(tmp_path, {"one": one.port, "two": two.port}, routes)
        async with Relay(
            policy_with_limit(policy, "one", "{messages: 1, per: 1h, for_each: sender}")
        ) as relay:
            relay.accept("first@x.example")
            await relay.until(lambda: one.relayed)
            began_ns = relay.clock.boottime_ns()
            relay.accept("second@x.example")
            await relay.until(lambda: two.relayed)
            assert relay.clock.boottime_ns() - began_ns <= 61 * SECOND_NS
            relay.accept("third@x.example", sender="owner@here.example")
            await relay.until(lambda: len(one.relayed) == 2)
            assert relay.clock.boottime_ns() - began_ns <= 62 * SECOND_NS


def policy_with_limit(policy: Policy, name: str, limit: str, **others: int) -> Policy:
    text = f"""
spool: /s
listen: [{{address: '127.0.0.1:0', clients: [127.0.0.0/8]}}]
upstreams: {{x: {{host: h, limits: [{limit}]}}}}
"""
    limits = parse_policy(text.encode(), policy.spool / "x.yaml").upstreams["x"].limits
    changed = policy.upstreams[name].model_copy(update={"limits": limits, **others})
    return policy.model_copy(update={"upstreams": {**policy.upstreams, name: changed}})


COUNTED = "relay_route_diverted_messages_total"


def told(relay: Relay) -> list[str]:
    relay.events.flush()
    return [
        line.split("]: ", 1)[1].rpartition(" event=")[0]
        for line in relay.log.getvalue().splitlines()
        if " route" in line
    ]


def counted(relay: Relay, *labels: str) -> float | None:
    names = ("upstream", "instead_of", "because")
    return relay.metrics.registry.get_sample_value(COUNTED, dict(zip(names, labels, strict=True)))


def gauges(relay: Relay) -> dict[tuple[str, ...], float]:
    collector = SnapshotCollector(relay.metrics, relay.watch.snapshot, relay.events, relay.clock)
    return {
        tuple(sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
        if sample.name in ("relay_route_diverted", "relay_routes_down")
    }


def shown_routes(relay: Relay) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = to_json(relay.watch.snapshot())["routes"]
    return shown


async def test_a_failover_is_told_once_and_counted_by_message(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost() as one, Smarthost() as two:
        policy = routed(tmp_path, {"one": one.port, "two": two.port}, BOTH)
        async with Relay(policy) as relay:
            failover, spill, all_down = ("two", "one", "failover"), ("two", "one", "spill"), ()
            await relay.operator.pause("one", LASTING)
            for number in range(10):
                relay.accept(f"r{number}@x.example")
            await relay.until(lambda: len(relay.sender.queue) == 10)
            assert told(relay) == []
            await leap(relay, clock, 16 * MINUTE_NS)
            await relay.until_empty()

            assert told(relay) == ["warning: route 1: mail goes through two instead of one: failover"]
            assert counted(relay, *failover) == 10
            assert gauges(relay) == {failover: 1, spill: 0, all_down: 0}
            shown = shown_routes(relay)[0]
            assert (shown["because"], shown["upstream"], shown["numbers"]) == ("failover", "two", [1])

            assert await relay.operator.resume("one") == OK
            relay.accept("last@x.example")
            await relay.until_empty()
            await relay.until(lambda: pausing(relay, "one").state.is_used and len(told(relay)) == 2)
            assert told(relay)[1] == "route 1: mail goes through one again; what is over: failover"
            assert gauges(relay) == {failover: 0, spill: 0, all_down: 0}
            assert counted(relay, *failover) == 10


async def test_a_probe_that_proved_nothing_is_soon_followed_by_another(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(rcpt=turns("450 4.2.0 come again"))) as one, Smarthost() as two:
        ports = {"one": one.port, "two": two.port}
        policy = routed(tmp_path, ports, BOTH, "retry: {min: 1d, max: 1d, lifetime: 5d}")
        async with Relay(policy_with_limit(policy, "two", "{messages: 1, per: 24h}")) as relay:
            await relay.operator.pause("one", LASTING)
            for number in range(3):
                relay.accept(f"r{number}@x.example")
            await relay.until(lambda: len(relay.sender.queue) == 3)
            await leap(relay, clock, 16 * MINUTE_NS)
            await relay.until(lambda: two.relayed)
            began_ns = clock.boottime_ns()
            assert await relay.operator.resume("one") == OK
            await relay.until(lambda: one.relayed)
            assert clock.boottime_ns() - began_ns < 30 * SECOND_NS


async def test_a_route_of_which_every_upstream_is_down_is_told(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost() as one, Smarthost() as two:
        routes = "  - {sender: '@a.example', upstreams: [one, two]}\n" + BOTH
        policy = routed(tmp_path, {"one": one.port, "two": two.port}, routes)
        async with Relay(policy) as relay:
            await relay.operator.pause("one", LASTING)
            await relay.operator.pause("two", LASTING)
            await leap(relay, clock, 16 * MINUTE_NS)
            await relay.until(lambda: told(relay))

            # Two routes that differ in what they take alone are told of together.
            assert told(relay) == ["error: route 1, 2: every upstream is down, and mail waits for one"]
            assert gauges(relay)[()] == 2
            assert shown_routes(relay)[0]["takes"] == ["sender", "all other mail"]


EIGHT_BIT = CONTENT + b"gr\xc3\xbc\xc3\x9fe\r\n" * 40
LACKS_EIGHT_BIT = b"250-fake.example\r\n250 SIZE 100000000\r\n"
SMALL = b"250-fake.example\r\n250-8BITMIME\r\n250 SIZE 300\r\n"
NO_MORE = "550 5.7.1 daily sending quota exceeded"
ODD: dict[str, Turn] = {
    "SIZE 300": SMALL,
    "no 8BITMIME": LACKS_EIGHT_BIT,
    "a quota": NO_MORE,
    "a quota in 502": "502 5.7.1 you have exceeded your hourly limit of messages",
}


async def bounced(relay: Relay) -> int:
    return relay.sender.totals.bounced


def deferred(relay: Relay) -> int:
    relay.events.flush()
    return relay.log.getvalue().count("by the word of this connection alone")


async def another_look(relay: Relay, clock: FakeClock, after_ns: int = APART_NS) -> None:
    """Let time pass until another connection counts, and a message asks for one."""
    before = deferred(relay)
    clock.advance(after_ns + SECOND_NS)
    relay.account.wake()
    # The first may have met the connection from before.
    await relay.until(lambda: deferred(relay) >= before + 3 or len(relay.sender.queue) == 0)


@pytest.mark.parametrize("odd", list(ODD.values()), ids=list(ODD))
async def test_one_odd_connection_bounces_nobody(tmp_path: Path, odd: Turn) -> None:
    clock = virtual_clock()
    async with (
        Smarthost(Script(ehlo=turns(odd))) as host,
        Relay(policy_of(tmp_path, host.port, connections=1)) as relay,
    ):
        for number in range(20):
            relay.accept(f"r{number}@there.example", content=EIGHT_BIT)
        await relay.until(lambda: deferred(relay) or relay.account.pausing.state.why or host.relayed)
        # Its connection is old by then.
        clock.advance(relay.policy.upstreams["isp"].max_age_ns)
        relay.account.pausing.end()
        relay.account.wake()
        await relay.until_empty()

        assert await bounced(relay) == 0
        assert len(host.relayed) == 20
        assert len(host.sessions) <= 3


async def test_what_an_upstream_truly_lacks_bounces_after_three_looks(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with (
        Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as host,
        Relay(policy_of(tmp_path, host.port, connections=1)) as relay,
    ):
        relay.accept(content=EIGHT_BIT)
        await relay.until(lambda: deferred(relay))
        await another_look(relay, clock)
        assert (await bounced(relay), len(relay.sender.queue)) == (0, 1)
        await another_look(relay, clock)
        await relay.until_empty()

        (report,) = host.relayed
        assert b"Status: 5.6.3" in report.content
        assert report.recipients == ["a@here.example"]
        # And the next one at once.
        relay.accept(content=EIGHT_BIT)
        await relay.until_empty()
        assert await bounced(relay) == 2

        # So what we refuse ourselves, in however many messages, stops no other mail.
        for number in range(30):
            relay.accept(f"r{number}@there.example", sender="", content=EIGHT_BIT)
        relay.accept()
        await relay.until_empty()
        assert relay.account.pausing.state.why == ""
        assert host.relayed[-1].recipients == ["b@there.example"]


async def test_what_one_upstream_can_never_carry_goes_at_once_through_the_next(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as one, Smarthost() as two:
        policy = routed(tmp_path, {"isp": one.port, "two": two.port}, "  - {upstreams: [isp, two]}")
        async with Relay(policy) as relay:
            relay.accept(content=EIGHT_BIT)
            await relay.until(lambda: deferred(relay))
            for _ in range(2):
                await another_look(relay, clock)
            relay.accept("plain@there.example")
            await relay.until_empty()
            assert await bounced(relay) == 0
        assert (recipients(one), recipients(two)) == (["plain@there.example"], ["b@there.example"])


REWRITTEN = (
    b"From: <news@example.com>\r\nX-Original-From: a@here.example\r\nReply-To: a@here.example\r\n"
    b"Subject: hello\r\n\r\nhello\r\n.dotted\r\n"
)


def rewriting(folder: Path, port: int, *routes: str, keys: str = "") -> Policy:
    lines = "\n".join(f"  - {route}" for route in routes or ("{upstreams: [isp]}",))
    retry = "retry: {min: 50ms, max: 100ms, lifetime: 1d}"
    return policy_of(folder, port, keys, f"{retry}\nroutes:\n{lines}")


FIXED = "{upstreams: [isp], rewrite: news@example.com}"
DOMAIN = "{upstreams: [isp], rewrite: '@example.com'}"


@pytest.mark.parametrize("size", [300_000, 1_000_000])
async def test_long_content_is_streamed_behind_its_rewritten_front(tmp_path: Path, size: int) -> None:
    line = b"x" * 70 + b"\r\n"
    long = CONTENT + line * (size // len(line))
    async with Smarthost() as host, Relay(rewriting(tmp_path, host.port, FIXED)) as relay:
        relay.accept(content=long)
        await relay.until_empty()

    (relayed,) = host.relayed
    assert relayed.content == REWRITTEN + long[len(CONTENT) :]
    assert f"SIZE={len(relayed.content)}" in relayed.parameters


async def test_an_edit_changes_what_is_queued(tmp_path: Path) -> None:
    is_over: list[bool] = []
    script = Script(mail=lambda _: DEFAULT if is_over else "450 4.7.1 not now")
    async with Smarthost(script) as host, Relay(rewriting(tmp_path, host.port)) as relay:
        queue_id = relay.accept()
        await relay.until(lambda: (queued := relay.queued(queue_id)) and queued.reason)
        edited = rewriting(tmp_path, host.port, DOMAIN)
        await relay.sender.apply(edited)
        relay.watch.policy = edited
        await relay.until(lambda: (queued := relay.queued(queue_id)) and queued.part.rewriting)
        is_over.append(True)
        await relay.until_empty()

    assert host.relayed[-1].reverse_path == "a@example.com"
    assert b"From: <a@example.com>\r\nX-Original-From: a@here.example" in host.relayed[-1].content


async def test_each_part_goes_by_its_own_route(tmp_path: Path) -> None:
    plain = "{recipient_domain: inside.example, upstreams: [isp]}"
    async with Smarthost() as host, Relay(rewriting(tmp_path, host.port, plain, DOMAIN)) as relay:
        relay.accept("b@inside.example", "c@outside.example")
        await relay.until_empty()

    assert {each.recipients[0]: each.reverse_path for each in host.relayed} == {
        "b@inside.example": "a@here.example",
        "c@outside.example": "a@example.com",
    }


async def test_a_limit_for_each_sender_is_for_the_one_sent(tmp_path: Path) -> None:
    keys = ", limits: [{messages: 2, per: 1h, for_each: sender}]"
    async with Smarthost() as host, Relay(rewriting(tmp_path, host.port, FIXED, keys=keys)) as relay:
        for number in range(4):
            relay.accept(sender=f"u{number}@here.example")
        await relay.until(lambda: "limit" in reasons(relay))

    assert len(host.relayed) == 2


def reasons(relay: Relay) -> str:
    return " ".join(queued.reason for queued in relay.sender.queue)


async def test_failover_ends_with_an_edit_that_gives_the_upstream_another_account(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost() as one, Smarthost() as two:
        routes = "  - {upstreams: [one, two], failover_after: 1m}"
        policy = routed(tmp_path, {"one": one.port, "two": two.port}, routes)
        async with Relay(policy) as relay:
            pausing(relay, "one").rest(Answer(Verdict.STOP, Phase.AUTH, None, "535 account closed"))
            await leap(relay, clock, 2 * MINUTE_NS)
            relay.accept("before@x.example")
            await relay.until_empty()
            await relay.sender.apply(with_another_account(policy))
            relay.accept("after@x.example")
            await relay.until_empty()

    assert (recipients(one), recipients(two)) == (["after@x.example"], ["before@x.example"])
