"""Lanes from the policy to the smarthost: who goes next, who gets its share, what an edit does."""

from pathlib import Path

from relay.clock import SystemClock
from relay.control.operations import HELD_ALREADY, OK
from relay.mail.envelope import Envelope
from relay.policy.lane import with_ceilings
from relay.policy.model import Policy
from relay.spool.disk.durable import RealDisk
from relay.status.snapshot import message_to_json, to_json
from relay.throttle.audit import audit
from relay.throttle.history_check import book_in_file
from tests.fakes.smarthost import Recorded, Smarthost
from tests.unit.sender.in_process_relay import CONTENT, Relay, hurry, policy_of

RETRY = "retry: {min: 50ms, max: 100ms, lifetime: 30d}"
LANES = f"""{RETRY}
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


CEILED = f"""{RETRY}
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


async def test_a_message_is_in_the_same_lane_after_a_restart_and_is_shown_there(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 9, ", limits: [{messages: 1, per: 1h}]", LANES)
    for _ in range(2):
        async with Relay(policy) as relay:
            if len(relay.sender.queue) == 0:
                relay.accept(sender="list@here.example", content=LISTED)
                relay.accept(sender="noreply@here.example")
                relay.accept(sender="else@here.example")
            await relay.until(lambda: len(relay.sender.queue) == 3)

            shown = {message.reverse_path[0]: message for message in relay.watch.listing().messages()}
            assert {first: message.lane for first, message in shown.items()} == {
                "l": "list",
                "n": "resets",
                "e": "default",
            }
            assert message_to_json(shown["l"])["lane"] == "list"
            lanes = to_json(relay.watch.snapshot())["lanes"]
            assert [(each["name"], each["share_percent"]) for each in lanes] == [
                ("resets", 50.0),
                ("list", 30.0),
                ("default", 20.0),
            ]
