"""Limits and lanes, from the policy to the smarthost: what goes, what waits, and what is said."""

from pathlib import Path

from relay.policy.model import Policy
from relay.policy.source import parse_policy
from tests.fakes.smarthost import SILENCE, Script, Smarthost, turns
from tests.unit.sender.in_process_relay import CONTENT, Relay, hurry, policy_of, virtual_clock

MINUTE_NS = 60 * 10**9


def _reasons(relay: Relay) -> set[str]:
    return {queued.why.text for queued in relay.sender.queue}


async def test_an_edit_lets_waiting_mail_go_at_once_if_the_new_limit_has_room(tmp_path: Path) -> None:
    def limited(most: int) -> Policy:
        return policy_of(tmp_path, host.port, f", limits: [{{messages: {most}, per: 1h, for_each: sender}}]")

    async with Smarthost() as host, Relay(limited(1)) as relay:
        for number in range(4):
            relay.accept(f"r{number}@x.example")
        only_one = {"limit 1 messages per 1h for each sender"}
        await relay.until(lambda: len(host.relayed) == 1 and _reasons(relay) == only_one)
        began_ns = relay.clock.boottime_ns()
        await relay.sender.apply(limited(3))
        await relay.until(lambda: len(host.relayed) == 3)
        assert relay.clock.boottime_ns() - began_ns < MINUTE_NS


async def test_a_limit_that_an_edit_adds_counts_what_was_sent_before(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        for number in range(3):
            relay.accept(f"r{number}@x.example")
        await relay.until_empty()
        await relay.sender.apply(policy_of(tmp_path, host.port, ", limits: [{messages: 5, per: 1h}]"))
        for number in range(8):
            relay.accept(f"r{number}@x.example")
        await relay.until(lambda: "limit 5 messages per 1h" in _reasons(relay))
        assert len(host.relayed) == 5


LARGE = CONTENT + b"x" * 5000 + b"\r\n"
LIMIT = ", limits: [{bytes: 4500, per: 1h}]"


def _deferrals(relay: Relay, queue_id: str) -> int:
    return sum("status=deferred" in line and queue_id in line for line in relay.logged().splitlines())


async def test_a_message_larger_than_a_limit_delays_no_other_and_is_returned_at_last(tmp_path: Path) -> None:
    brief = "retry: {min: 10m, max: 10m, lifetime: 25m, warn_after: null}"
    limit = f"has {len(LARGE)} octets; limit 4500 bytes"
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, LIMIT, brief, 1)) as relay:
        large = relay.accept("large@x.example", content=LARGE)
        for number in range(3):
            relay.accept(f"r{number}@x.example")
        hurry(30)
        await relay.until(lambda: len(host.relayed) == 3 and _deferrals(relay, large) > 1)
        assert any(limit in reason for reason in _reasons(relay))
        # It took no slot, no octet of it was sent, and neither the upstream nor its sender was paused.
        assert relay.account.throttle.view.usage()[0].used == 3 * len(CONTENT)
        assert not relay.account.pausing.state.why
        assert not [command for command in host.commands if "large@" in command]

        await relay.until_empty()
        report = host.relayed[3]
        assert report.recipients == ["a@here.example"]
        assert b"Action: failed" in report.content
        assert limit.encode() in b" ".join(report.content.split())


async def test_a_message_larger_than_a_limit_goes_at_once_through_the_next_upstream(tmp_path: Path) -> None:
    async with Smarthost() as one, Smarthost() as two:
        text = f"""
spool: ./spool
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams:
  one: {{host: 127.0.0.1, port: {one.port}, tls: none, history: one, limits: [{{bytes: 4500, per: 1h}}]}}
  two: {{host: 127.0.0.1, port: {two.port}, tls: none, history: two, limits: [{{bytes: 9000, per: 1h}}]}}
routes: [{{upstreams: [one, two]}}]
"""
        async with Relay(parse_policy(text.encode(), tmp_path / "policy.yaml")) as relay:
            large = relay.accept("large@x.example", content=LARGE)
            relay.accept("small@x.example")
            await relay.until_empty()
            assert _deferrals(relay, large) == 0
    assert [each.recipients for each in one.relayed] == [["small@x.example"]]
    assert [each.recipients for each in two.relayed] == [["large@x.example"]]


async def test_a_dot_that_a_suspended_host_sends_at_its_wake_up_counts_from_then(tmp_path: Path) -> None:
    clock = virtual_clock()
    limit = ", limits: [{messages: 1, per: 1m}], guard: 1ms, max_transaction: 5s"
    script = Script(eod=turns(SILENCE))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port, limit)) as relay:
        relay.accept()
        await host.until(lambda: host.transactions)
        # Only now, long after the deadline and T, may the dot reach the upstream.
        clock.advance(10 * MINUTE_NS)
        woke_ns = clock.boottime_ns()
        await relay.until(lambda: host.relayed)
        assert clock.boottime_ns() >= woke_ns + MINUTE_NS


async def test_a_lane_never_exceeds_its_ceiling_of_a_limit_and_delays_no_other_mail(tmp_path: Path) -> None:
    lanes = (
        "retry: {min: 1m, max: 1m, lifetime: 30d}\nlanes: {list: {sender: list@here.example, ceiling: 50}}"
    )
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port, ", limits: [{messages: 6, per: 1h}]", lanes)
        async with Relay(policy) as relay:
            for number in range(5):
                relay.accept(f"list{number}@x.example", sender="list@here.example")
            await relay.until(lambda: len(host.relayed) == 3 and relay.account.in_flight == 0)
            await relay.until(lambda: "lane list" in relay.status_view.snapshot().upstreams[0].held_by)
            assert "ceiling of lane list" in _reasons(relay)
        # The history keeps the ceiling: after a restart no more of the lane goes either.
        async with Relay(policy) as relay:
            for number in range(3):
                relay.accept(f"else{number}@x.example", sender="else@here.example")
            await relay.until(lambda: len(host.relayed) == 6)
            usages = relay.account.throttle.view.usage()
            usage = {each.limit.label: (each.used, each.limit.count) for each in usages}
            assert usage == {
                "6 messages per 1h": (6, 6),
                "3 messages per 1h for lane list": (3, 3),
            }
    assert [each.reverse_path for each in host.relayed[3:]] == ["else@here.example"] * 3


async def test_a_refusal_is_logged_with_what_our_windows_held(tmp_path: Path) -> None:
    def rcpt(_: str) -> str:
        is_over = sum(command.startswith("RCPT") for command in host.commands) > 19
        return "450 4.7.1 you have exceeded the limit of 19 recipients per hour" if is_over else "250 ok"

    limits = ", limits: [{recipients: 20, per: 1h}, {messages: 1000, per: 1m}]"
    async with Smarthost(Script(rcpt=rcpt)) as host, Relay(policy_of(tmp_path, host.port, limits)) as relay:
        relay.accept(*[f"r{number}@there.example" for number in range(19)])
        await relay.until_empty()
        relay.accept("one-more@there.example")
        await relay.until(lambda: relay.account.pausing.state.why)

        (line,) = (line for line in relay.logged().splitlines() if "event=cut_off" in line)
        assert (
            "reports an exceeded limit of 19; the windows of the relay held 20/20 recipients per 1h, " in line
        )
        assert "2/1000 messages per 1m" in line


async def test_a_history_that_begins_empty_is_announced_once(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port, ", limits: [{messages: 5, per: 1h}]")
        begins = f"new history of isp, at {policy.history_path('isp')}: "
        for announced in (1, 0):
            async with Relay(policy) as relay:
                for _ in range(2):
                    relay.accept()
                    await relay.until_empty()
                assert relay.logged().count(begins) == announced
