"""Routes: failover while an upstream is down, rewriting, and upstreams that lack an extension."""

import errno
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.policy.model import Policy
from relay.policy.units import HistorySettings
from relay.queue.queued import State
from relay.sender.connections import APART_NS
from relay.sender.pausing import Pausing
from relay.smtp.reply import Phase
from relay.status.collector import SnapshotCollector
from relay.status.snapshot import to_json
from relay.verdicts.account import PauseAsked
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import CLOSE, Script, Smarthost, Turn, turns
from tests.fakes.unsynced import Unsynced
from tests.unit.sender.in_process_relay import (
    CONTENT,
    Relay,
    policy_of,
    turns_of_the_loop,
    virtual_clock,
)

LASTING = PauseAsked("anna")
REFUSED = Answer(Verdict.STOP, Phase.AUTH, None, "535 account closed")
MINUTE_NS = 60 * SECOND_NS
RETRY = "retry: {min: 50ms, max: 100ms, lifetime: 1d}"


def routed(folder: Path, ports: dict[str, int], routes: str, retry: str = RETRY) -> Policy:
    return policy_of(folder, ports, ", history: NAME, shield: null", f"routes:\n{routes}\n{retry}")


def pausing(relay: Relay, name: str) -> Pausing:
    return relay.sender.accounts[name].pausing


def recipients(host: Smarthost) -> list[str]:
    return sorted(each for mail in host.relayed for each in mail.recipients)


async def leap(relay: Relay, span_ns: int) -> None:
    """Advance time as a suspend does, and let every account look again."""
    virtual_clock().advance(span_ns)
    relay.sender.wake()
    await turns_of_the_loop()


TO_ONE, TO_TWO = "  - {upstreams: [one]}", "  - {upstreams: [two]}"
BOTH = "  - {upstreams: [one, two]}"
SOON = "  - {upstreams: [one, two], failover_after: 1m}"


async def test_mail_of_unknown_outcome_fails_over_like_any_other(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(eod=turns(CLOSE))) as one,
        Smarthost() as two,
        Relay(routed(tmp_path, {"one": one.port, "two": two.port}, SOON)) as relay,
    ):
        queue_id = relay.accept("a@x.example")
        await relay.until(lambda: (part := relay.queued(queue_id)) and part.state is State.DEFERRED)
        await relay.operator.pause("one", LASTING)
        relay.accept("b@x.example")
        await leap(relay, 6 * MINUTE_NS)
        await relay.until_empty()

    # It may arrive twice, because the outcome between the final dot and its reply is unknown.
    assert recipients(two) == ["a@x.example", "b@x.example"]
    assert len(one.transactions) == 1


def with_another_account(policy: Policy) -> Policy:
    history = HistorySettings(path=policy.spool.parent / "another")
    another = policy.upstreams["one"].model_copy(update={"history": history})
    return policy.model_copy(update={"upstreams": {**policy.upstreams, "one": another}})


@pytest.mark.parametrize("edit", ["its route", "the upstream is removed", "the upstream has another account"])
async def test_waiting_for_a_refused_account_is_no_age_even_after_an_edit(tmp_path: Path, edit: str) -> None:
    later = "451 4.3.0 later"
    async with Smarthost(Script(rcpt=turns(later))) as one, Smarthost(Script(rcpt=turns(later))) as two:
        ports, retry = {"one": one.port, "two": two.port}, "retry: {min: 10m, max: 10m, lifetime: 30m}"
        policy = routed(tmp_path, ports, TO_ONE, retry)
        edited = {
            "its route": routed(tmp_path, ports, TO_TWO, retry),
            "the upstream is removed": routed(tmp_path, {"two": two.port}, TO_TWO, retry),
            "the upstream has another account": with_another_account(policy),
        }
        async with Relay(policy) as relay:
            pausing(relay, "one").rest(REFUSED)
            relay.accept("a@x.example")
            await relay.until(lambda: len(relay.sender.queue))
            await leap(relay, 50 * MINUTE_NS)
            await relay.sender.apply(edited[edit])
            await relay.until_empty()
            assert relay.sender.totals["expired"] == 0
    assert recipients(one) + recipients(two) == ["a@x.example"]


async def test_failover_ends_with_an_edit_that_gives_the_upstream_another_account(tmp_path: Path) -> None:
    async with Smarthost() as one, Smarthost() as two:
        policy = routed(tmp_path, {"one": one.port, "two": two.port}, SOON)
        async with Relay(policy) as relay:
            pausing(relay, "one").rest(REFUSED)
            await leap(relay, 2 * MINUTE_NS)
            relay.accept("before@x.example")
            await relay.until_empty()
            await relay.sender.apply(with_another_account(policy))
            relay.accept("after@x.example")
            await relay.until_empty()

    assert (recipients(one), recipients(two)) == (["after@x.example"], ["before@x.example"])


async def test_mail_that_an_edit_finds_unreadable_is_read_again_after_a_minute(tmp_path: Path) -> None:
    ports, fails, asked = {"one": 9, "two": 9}, False, 0

    def fail(name: str, path: str) -> None:
        nonlocal asked
        if fails and name == "open_read" and "/cur/" in path:
            asked += 1
            raise OSError(errno.EIO, "Input/output error")

    async with Relay(routed(tmp_path, ports, TO_TWO), Unsynced(fail)) as relay:
        await relay.operator.pause("two", LASTING)
        queue_id = relay.accept("r@x.example")
        await relay.until(lambda: relay.queued(queue_id))
        relay.sender.spool_thread.forget(queue_id)
        fails = True
        await relay.sender.apply(routed(tmp_path, ports, TO_ONE))
        await relay.until(lambda: asked == 1)
        failed_at_ns = relay.clock.boottime_ns()
        await relay.until(lambda: asked == 2)
        assert relay.clock.boottime_ns() - failed_at_ns >= MINUTE_NS
        fails = False
        await relay.until(lambda: [part.upstream for part in relay.sender.queue] == ["one"])


def told(relay: Relay) -> list[str]:
    return [
        line.split("]: ", 1)[1].rpartition(" event=")[0]
        for line in relay.logged().splitlines()
        if " route" in line
    ]


def gauges(relay: Relay) -> dict[tuple[str, ...], float]:
    collector = SnapshotCollector(relay.metrics, relay.status_view.snapshot, relay.events)
    return {
        tuple(sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
        if sample.name in ("relay_route_diverted", "relay_routes_down")
    }


async def test_each_change_of_a_route_is_logged_once_and_diverted_mail_is_counted(tmp_path: Path) -> None:
    failover, spill, all_down = ("two", "one", "failover"), ("two", "one", "spill"), ()
    # Two routes that differ only in what they take are reported together.
    routes = "  - {sender: '@a.example', upstreams: [one, two]}\n" + BOTH
    async with (
        Smarthost() as one,
        Smarthost() as two,
        Relay(routed(tmp_path, {"one": one.port, "two": two.port}, routes)) as relay,
    ):
        await relay.operator.pause("one", LASTING)
        for number in range(10):
            relay.accept(f"r{number}@x.example")
        await relay.until(lambda: len(relay.sender.queue) == 10)
        assert told(relay) == []
        (to,) = (await relay.operator.show((await relay.listed())[0].queue_id)).recipient_statuses
        assert (to.routes, to.upstream) == ((1, 2), "one")
        await leap(relay, 16 * MINUTE_NS)
        await relay.until_empty()
        diverted = "warning: route 1, 2: mail goes through two instead of one: failover"
        assert told(relay) == [diverted]
        assert gauges(relay) == {failover: 1, spill: 0, all_down: 0}
        shown = to_json(relay.status_view.snapshot())["routes"][0]
        assert (shown["because"], shown["upstream"], shown["numbers"]) == ("failover", "two", [1, 2])
        assert shown["takes"] == ["sender", "all other mail"]

        assert await relay.operator.resume("one") == OK
        relay.accept("last@x.example")
        await relay.until_empty()
        restored = "route 1, 2: mail goes through one again; the diversion ended: failover"
        await relay.until(lambda: told(relay) == [diverted, restored])
        assert gauges(relay) == {failover: 0, spill: 0, all_down: 0}

        for name in ("one", "two"):
            await relay.operator.pause(name, LASTING)
        await leap(relay, 16 * MINUTE_NS)
        down = "error: route 1, 2: every upstream is down, and mail waits for one"
        await relay.until(lambda: told(relay)[2:] == [down])
        assert gauges(relay)[all_down] == 2
    labels = {"upstream": "two", "instead_of": "one", "because": "failover"}
    assert relay.metrics.registry.get_sample_value("relay_route_diverted_messages_total", labels) == 10


EIGHT_BIT = CONTENT + b"gr\xc3\xbc\xc3\x9fe\r\n" * 40
ODD: dict[str, Turn] = {
    "SIZE 300": b"250-fake.example\r\n250-8BITMIME\r\n250 SIZE 300\r\n",
    "no 8BITMIME": b"250-fake.example\r\n250 SIZE 100000000\r\n",
    "a quota": "550 5.7.1 daily sending quota exceeded",
    "a quota in 502": "502 5.7.1 you have exceeded your hourly limit of messages",
}


def deferred(relay: Relay) -> int:
    return relay.logged().count("another connection may accept it")


async def another_look(relay: Relay) -> None:
    """Advance time until another connection counts as a look, and wait for that look."""
    before = deferred(relay)
    virtual_clock().advance(APART_NS + SECOND_NS)
    relay.account.wake.set()
    # The first attempt may have met the previous connection.
    await relay.until(lambda: deferred(relay) >= before + 3 or len(relay.sender.queue) == 0)


@pytest.mark.parametrize("odd", list(ODD.values()), ids=list(ODD))
async def test_one_odd_connection_bounces_nobody(tmp_path: Path, odd: Turn) -> None:
    async with (
        Smarthost(Script(ehlo=turns(odd))) as host,
        Relay(policy_of(tmp_path, host.port, connections=1)) as relay,
    ):
        for number in range(20):
            relay.accept(f"r{number}@there.example", content=EIGHT_BIT)
        await relay.until(lambda: deferred(relay) or relay.account.pausing.state.why or host.relayed)
        # The odd connection has reached its maximum age by then.
        virtual_clock().advance(relay.policy.upstreams["isp"].max_age_ns)
        relay.account.pausing.end()
        relay.account.wake.set()
        await relay.until_empty()

        assert relay.sender.totals["bounced"] == 0
        assert len(host.relayed) == 20
        assert len(host.sessions) <= 3


async def test_mail_that_an_upstream_cannot_carry_bounces_after_three_looks(tmp_path: Path) -> None:
    async with (
        Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as host,
        Relay(policy_of(tmp_path, host.port, connections=1)) as relay,
    ):
        relay.accept(content=EIGHT_BIT)
        await relay.until(lambda: deferred(relay))
        await another_look(relay)
        assert (relay.sender.totals["bounced"], len(relay.sender.queue)) == (0, 1)
        await another_look(relay)
        await relay.until_empty()

        (report,) = host.relayed
        assert b"Status: 5.6.3" in report.content
        assert report.recipients == ["a@here.example"]
        # The next ones bounce at once.  Refusals of our own, however many, stop no other mail.
        for number in range(30):
            relay.accept(f"r{number}@there.example", sender="", content=EIGHT_BIT)
        relay.accept()
        await relay.until_empty()
        assert relay.sender.totals["bounced"] == 31
        assert relay.account.pausing.state.why == ""
        assert host.relayed[-1].recipients == ["b@there.example"]


async def test_mail_that_one_upstream_can_never_carry_goes_through_the_next(tmp_path: Path) -> None:
    async with Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as one, Smarthost() as two:
        policy = routed(tmp_path, {"isp": one.port, "two": two.port}, "  - {upstreams: [isp, two]}")
        async with Relay(policy) as relay:
            relay.accept(content=EIGHT_BIT)
            await relay.until(lambda: deferred(relay))
            for _ in range(2):
                await another_look(relay)
            relay.accept("plain@there.example")
            await relay.until_empty()
            assert relay.sender.totals["bounced"] == 0
        assert (recipients(one), recipients(two)) == (["plain@there.example"], ["b@there.example"])


REWRITTEN = (
    b"From: <news@example.com>\r\nX-Original-From: a@here.example\r\nReply-To: a@here.example\r\n"
    b"Subject: hello\r\n\r\nhello\r\n.dotted\r\n"
)
REWRITES = f"{RETRY}\nroutes: [{{upstreams: [isp], rewrite: news@example.com}}]"


async def test_long_content_is_streamed_behind_its_rewritten_front(tmp_path: Path) -> None:
    rest = (b"x" * 70 + b"\r\n") * 10_000
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, rest=REWRITES)) as relay:
        relay.accept(content=CONTENT + rest)
        await relay.until_empty()

    (relayed,) = host.relayed
    assert relayed.content == REWRITTEN + rest
    assert f"SIZE={len(relayed.content)}" in relayed.parameters


@pytest.mark.parametrize(
    "limit",
    ["{messages: 2, per: 1h, for_each: sender}", f"{{bytes: {3 * len(REWRITTEN) - 1}, per: 1h}}"],
    ids=["sender", "octets"],
)
async def test_a_rewritten_message_counts_as_it_is_sent(tmp_path: Path, limit: str) -> None:
    keys = f", limits: [{limit}]"
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, keys, REWRITES)) as relay:
        for number in range(4):
            relay.accept(sender=f"u{number}@here.example")
        await relay.until(lambda: any("limit" in queued.why.text for queued in relay.sender.queue))

        assert len(host.relayed) == 2
