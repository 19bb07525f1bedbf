"""Limits and lanes, from the policy to the smarthost: what goes, what waits, when it goes, what is said."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS, SystemClock
from relay.control.operations import HELD_ALREADY, OK
from relay.mail.envelope import Envelope
from relay.policy.lane import with_ceilings
from relay.policy.model import Policy
from relay.spool.disk.durable import RealDisk
from relay.throttle.audit import audit
from relay.throttle.opening import book_in_file
from tests.fakes.smarthost import SILENCE, Recorded, Script, Smarthost, turns
from tests.unit.sender.in_process_relay import CONTENT, Relay, hurry, policy_of, virtual_clock
from tests.unit.sender.test_routes import policy_with_limit, recipients
from tests.unit.sender.test_routes import routed as route_policy_of


async def test_no_window_sees_more_connections_than_its_limit(
    tmp_path: Path,
) -> None:
    upstream = ", limits: [{connections: 2, per: 500ms}], guard: 1ms, max_messages: 1"
    clock, seen_at_ns = virtual_clock(), list[int]()

    def greeting(_: str) -> str:
        seen_at_ns.append(clock.boottime_ns())
        return "220 host.example ESMTP"

    async with Smarthost(Script(connect=greeting)) as host:
        async with Relay(policy_of(tmp_path, host.port, upstream)) as relay:
            for number in range(5):
                relay.accept(f"r{number}@x.example")
            await relay.until_empty()
            assert relay.watch.snapshot().upstreams[0].limits[0].unit == "connections"

        assert len(host.relayed) == len(seen_at_ns) == 5
        assert all(
            later - earlier >= 500_000_000 for earlier, later in zip(seen_at_ns, seen_at_ns[2:], strict=False)
        )
        slots = book_in_file(relay.policy.history_path("isp"), (), None, RealDisk(), SystemClock()).slots()
        found = audit(slots, relay.policy.upstreams["isp"].limits)
        assert (found.findings[0].most, found.findings[0].is_exceeded) == (2, False)


async def test_an_edit_lets_the_parked_go_at_once_where_the_new_limit_has_room(tmp_path: Path) -> None:
    upstream = ", limits: [{messages: 1, per: 1h, for_each: sender}]"
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, upstream)) as relay:
        for number in range(4):
            relay.accept(f"r{number}@x.example")
        await relay.until(lambda: len(host.relayed) == 1 and _reasons(relay) == {NO_ROOM})

        await relay.sender.apply(
            policy_of(tmp_path, host.port, ", limits: [{messages: 3, per: 1h, for_each: sender}]")
        )
        await relay.until(lambda: len(host.relayed) == 3)
        await relay.sender.apply(policy_of(tmp_path, host.port, ", limits: [{messages: 9, per: 1h}]"))
        await relay.until_empty()

        assert len(host.relayed) == 4


NO_ROOM = "limit 1 messages per 3600s for each sender"


def _reasons(relay: Relay) -> set[str]:
    return {message.reason for message in relay.watch.listing().messages()}


LARGE = CONTENT + b"x" * 5000 + b"\r\n"
LIMIT = ", limits: [{bytes: 4500, per: 1h}]"
BRIEF = "retry: {min: 1ms, max: 1ms, lifetime: 1d, warn_after: null}"
REASON = f"the message has {len(LARGE)} octets, and the limit 4500 bytes per 3600s lets no more than 4500 go"


def _deferrals(relay: Relay, queue_id: str) -> int:
    relay.events.flush()
    return sum("status=deferred" in line and queue_id in line for line in relay.log.getvalue().splitlines())


async def test_it_is_deferred_and_says_why_and_others_go(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, LIMIT, connections=1)) as relay:
        large = relay.accept("large@x.example", content=LARGE)
        for number in range(3):
            relay.accept(f"r{number}@x.example")
        await relay.until(lambda: len(host.relayed) == 3)
        await relay.until(lambda: _deferrals(relay, large) > 1)

        (waiting,) = relay.watch.listing().messages()
        assert REASON in waiting.reason
        assert {message.recipients[0] for message in host.relayed} == {f"r{n}@x.example" for n in range(3)}
        # It had no slot, no byte was sent of it, and neither the upstream nor its sender is held for it.
        assert relay.account.throttle.view.usage()[0].used == 3 * len(CONTENT)
        assert not relay.account.pausing.state.why
        assert not [command for command in host.commands if "large@" in command]


@pytest.mark.parametrize("each", ["", ", for_each: sender", ", for_each: recipient_domain"])
async def test_it_is_returned_at_the_end_of_its_life(tmp_path: Path, each: str) -> None:
    limit = LIMIT.replace("1h", "1h" + each)
    retry = BRIEF.replace("1d", "2ms")
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, limit, retry)) as relay:
        relay.accept("large@x.example", content=LARGE)
        await relay.until_empty()

        (report,) = host.relayed
        assert report.recipients == ["a@here.example"]
        assert b"Action: failed" in report.content
        assert REASON.split(" per ", maxsplit=1)[0].encode() in b" ".join(report.content.split())


def _two_upstreams(folder: Path, ports: dict[str, int], *limits: int) -> Policy:
    policy = route_policy_of(folder, ports, "  - {upstreams: [one, two], spill_after: 1d}")
    for name, count in zip(ports, limits, strict=True):
        policy = policy_with_limit(policy, name, f"{{bytes: {count}, per: 1h}}")
    return policy


async def test_it_goes_at_once_through_the_next_upstream_that_can_take_it(tmp_path: Path) -> None:
    async with Smarthost() as one, Smarthost() as two:
        ports = {"one": one.port, "two": two.port}
        async with Relay(_two_upstreams(tmp_path, ports, 4500, 9000)) as relay:
            large = relay.accept("large@x.example", content=LARGE)
            relay.accept("small@x.example")
            await relay.until_empty()
            assert _deferrals(relay, large) == 0
        assert (recipients(one), recipients(two)) == (["small@x.example"], ["large@x.example"])


LOST = ", limits: [{messages: 1, per: 1m}], guard: 1ms, max_transaction: 10m"
MINUTE_NS = 60 * SECOND_NS


async def _settled(relay: Relay) -> None:
    """Wait until the first transaction is at its end, as far as anybody will know."""
    await relay.until(lambda: (found := next(iter(relay.sender.queue), None)) and found.reason)
    await relay.until(lambda: relay.account.in_flight == 0)


async def test_a_lost_reply_of_which_a_busy_host_hears_late_costs_one_slot(tmp_path: Path) -> None:
    clock = virtual_clock()
    limit = LOST.replace("messages: 1", "messages: 2").replace("10m", "5s")
    script = Script(eod=turns(SILENCE))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port, limit)) as relay:
        relay.accept()
        await host.until(lambda: host.transactions)
        clock.advance(5 * SECOND_NS + SECOND_NS // 10)
        await _settled(relay)
        assert relay.free_slots == 1


async def test_what_a_suspended_host_sent_when_it_woke_counts_from_then(tmp_path: Path) -> None:
    clock, limit = virtual_clock(), LOST.replace("10m", "5s")
    script = Script(eod=turns(SILENCE))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port, limit)) as relay:
        relay.accept()
        await host.until(lambda: host.transactions)
        # Long after deadline and T: only now the dot may reach the upstream.
        clock.advance(10 * MINUTE_NS)
        woke_ns = clock.boottime_ns()
        await _settled(relay)
        assert relay.free_slots == 0
        await relay.until(lambda: host.relayed)
        assert clock.boottime_ns() >= woke_ns + MINUTE_NS


RETRY_FOR_LONG = "retry: {min: 50ms, max: 100ms, lifetime: 30d}"
LANES = f"""{RETRY_FOR_LONG}
lanes:
  resets: {{sender: noreply@here.example, share: 50}}
  list: {{header: {{List-Id: "*announce*"}}, share: 30}}
"""
LISTED = b"List-Id: <announce.here.example>\r\n" + CONTENT


def _hand_over(relay: Relay, count: int, sender: str, content: bytes) -> None:
    """Have a listener accept so many messages as one batch."""
    drafts = []
    for _ in range(count):
        draft = relay.intake.draft()
        draft.append(content)
        envelope = Envelope(
            sender, ("b@there.example",), relay.clock.wall_ns(), "unknown[127.0.0.1]", "here", "ESMTP"
        )
        drafts.append((draft, envelope))
    assert not any(relay.intake.accept(drafts))
    relay.trigger.pull()


def _senders(transactions: list[Recorded]) -> str:
    """Return the first letter of each sender."""
    return "".join(transaction.reverse_path[0] for transaction in transactions)


async def test_a_message_that_the_operator_puts_first_has_the_next_slot_before_every_lane(
    tmp_path: Path,
) -> None:
    upstream = ", guard: 1ms, limits: [{messages: 1, per: 1h}, {messages: 1, per: 3h, for_each: sender}]"
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, upstream, LANES, 1)) as relay:
        _hand_over(relay, 1, "list@here.example", LISTED)
        await relay.until(lambda: len(host.relayed) == 1 and not len(relay.sender.queue))
        _hand_over(relay, 20, "noreply@here.example", CONTENT)
        _hand_over(relay, 20, "list@here.example", LISTED)
        wanted = relay.accept("wanted@x.example", sender="list@here.example", content=LISTED)
        other = relay.accept("other@x.example", sender="else@here.example")
        await relay.until(lambda: len(relay.sender.queue) == 42)
        assert await relay.operator.act("first", [wanted, other]) == {wanted: OK, other: OK}
        hurry(30)
        await relay.until(lambda: len(host.relayed) == 4)

        # Its sender has no room at first: that limit holds, and keeps back nobody else.
        assert _senders(host.relayed[1:]) == "enl"
        assert host.relayed[3].recipients == ["wanted@x.example"]
        held = relay.accept()
        await relay.until(lambda: held in relay.sender.queue)
        await relay.operator.act("hold", [held])
        assert await relay.operator.act("first", [held]) == {held: HELD_ALREADY}


CEILED = f"""{RETRY_FOR_LONG}
lanes:
  list: {{sender: list@here.example, ceiling: 50}}
"""


async def test_a_lane_never_holds_more_of_a_limit_than_its_ceiling_and_all_else_goes_on(
    tmp_path: Path,
) -> None:
    upstream = ", limits: [{messages: 6, per: 1h}]"
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port, upstream, CEILED)
        async with Relay(policy) as relay:
            for number in range(5):
                relay.accept(f"r{number}@x.example", sender="list@here.example")
            await relay.until(lambda: len(host.relayed) == 3 and relay.account.in_flight == 0)
            await relay.until(lambda: "lane list" in relay.watch.snapshot().upstreams[0].held_by)
            for number in range(2):
                relay.accept(f"r{number}@x.example", sender="else@here.example")
            await relay.until(lambda: len(host.relayed) == 5)

            assert _senders(host.relayed[3:]) == "ee"
            reasons = {message.reason for message in relay.watch.listing().messages()}
            assert "ceiling of lane list" in reasons
            usage = {each.label: (each.used, each.count) for each in relay.account.throttle.view.usage()}
            assert usage == {
                "6 messages per 3600s": (5, 6),
                "3 messages per 3600s for lane list": (3, 3),
            }
        # It is the history that says so: nothing more goes after a restart either.
        async with Relay(policy) as relay:
            await relay.until(lambda: len(relay.sender.queue) == 2)
            relay.accept(sender="else@here.example")
            await relay.until(lambda: len(host.relayed) == 6)
            assert _senders(host.relayed[5:]) == "e"
            await relay.until(lambda: len(relay.sender.queue) == 2)
            await _edit(relay, policy_of(tmp_path, host.port, ", limits: [{messages: 9, per: 1h}]", CEILED))
            await relay.until(lambda: len(host.relayed) == 7)
            assert _senders(host.relayed[6:]) == "l"
    edited = relay.watch.policy
    limits = with_ceilings(edited.upstreams["isp"].limits, edited.lanes)
    found = audit(
        book_in_file(policy.history_path("isp"), (), None, RealDisk(), SystemClock()).slots(), limits
    )
    assert [(finding.most, finding.count, not finding.is_exceeded) for finding in found.findings] == [
        (7, 9, True),
        (4, 4, True),
    ]


async def _edit(relay: Relay, policy: Policy) -> None:
    await relay.sender.apply(policy)
    relay.watch.policy = policy


OVER = "450 4.7.1 you have exceeded the limit of 19 recipients per hour"
LIMITS = ", limits: [{recipients: 20, per: 1h}, {messages: 1000, per: 1m}]"


class Counting:
    """An upstream that takes so many recipients and refuses from then on."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def rcpt(self, _: str) -> str:
        if self.taken >= self.most:
            return OVER
        self.taken += 1
        return "250 ok"


async def test_a_refusal_is_told_beside_what_our_windows_held(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=Counting(19).rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, LIMITS)) as relay,
    ):
        relay.accept(*[f"r{number}@there.example" for number in range(19)])
        await relay.until_empty()
        relay.accept("one-more@there.example")
        await relay.until(lambda: relay.account.pausing.state.why and relay.account.in_flight == 0)

        relay.events.flush()
        (line,) = (line for line in relay.log.getvalue().splitlines() if "event=cut_off" in line)
        assert "this was too much, and names 19; our windows held 20/20 recipients per 3600s, " in line
        assert "2/1000 messages per 60s" in line


FIVE_AN_HOUR = ", limits: [{messages: 5, per: 1h}]"


def _told(relay: Relay) -> list[str]:
    relay.events.flush()
    return [line.partition("]: ")[2] for line in relay.log.getvalue().splitlines() if "begins empty" in line]


def _line(path: Path) -> str:
    return f"history of isp begins empty, at {path}: nothing that was sent before counts event=history_begun"


async def test_a_history_that_begins_empty_is_announced_when_it_is_made_and_never_again(
    tmp_path: Path,
) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port, FIVE_AN_HOUR)
        async with Relay(policy) as relay:
            for _ in range(2):
                relay.accept()
                await relay.until_empty()
            assert _told(relay) == [_line(policy.history_path("isp"))]
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until_empty()
            assert _told(relay) == []


async def test_what_rewriting_adds_counts_and_is_told(tmp_path: Path) -> None:
    limit = f", limits: [{{bytes: {len(CONTENT)}, per: 1h}}]"
    rest = (
        "retry: {min: 1ms, max: 1ms, lifetime: 1d}\nroutes: [{upstreams: [isp], rewrite: news@example.com}]"
    )
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, limit, rest)) as relay:
        queue_id = relay.accept()
        await relay.until(lambda: _deferrals(relay, queue_id) > 0)

        (waiting,) = relay.watch.listing().messages()
        assert f"lets no more than {len(CONTENT)} go" in waiting.reason
        assert f"the message has {len(CONTENT)} octets" not in waiting.reason
