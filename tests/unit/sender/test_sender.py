"""The flow from spool to upstream, with every part real but the smarthost, which plays its script."""

import json
import re
from pathlib import Path

import pytest

from relay.control.operations import OK
from relay.queue.scheduler import State
from relay.spool.interface import Totals
from tests.fakes.smarthost import CLOSE, RESET, Script, Smarthost, turns
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of


async def test_what_is_accepted_is_relayed_once_byte_for_byte(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        contents = {f"r{n}@there.example": CONTENT + b"%d" % n * 1000 + b"\r\n" for n in range(40)}
        for recipient, content in contents.items():
            relay.accept(recipient, content=content)
        await relay.until_empty()

        assert {r.recipients[0]: r.content for r in host.relayed} == contents
        assert len(host.relayed) == len(contents)
        assert await relay.sender.spool_thread.totals() == Totals(accepted=40, relayed=40)


async def test_content_beyond_what_is_kept_in_memory_arrives_whole(tmp_path: Path) -> None:
    content = CONTENT + b"".join(b"line %d of many\r\n.\r\n" % n for n in range(50_000))
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept(content=content)
        await relay.until_empty()

        assert [r.content for r in host.relayed] == [content]


async def test_a_refused_recipient_is_reported_through_the_same_queue(tmp_path: Path) -> None:
    script = Script(rcpt=turns("250 ok", "550 5.1.1 nobody here by that name"))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept("b@there.example", "nobody@there.example")
        await relay.until_empty()

        first, report = host.relayed
        assert first.recipients == ["b@there.example"]
        assert (report.reverse_path, report.recipients) == ("", ["a@here.example"])
        assert b"Final-Recipient: rfc822; nobody@there.example" in report.content
        assert b"nobody here by that name" in report.content
        totals = await relay.sender.spool_thread.totals()
        assert totals == Totals(accepted=3, relayed=2, bounced=1)


async def test_each_recipient_of_a_message_is_settled_on_its_own(tmp_path: Path) -> None:
    script = Script(rcpt=turns("250 ok", "451 4.2.1 later", "550 5.1.1 no", "250 ok"))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept("one@x.example", "two@x.example", "three@x.example")
        await relay.until_empty()

        relayed = [tuple(r.recipients) for r in host.relayed]
        assert ("one@x.example",) in relayed
        assert ("two@x.example",) in relayed
        assert ("a@here.example",) in relayed
        assert len(relayed) == 3


@pytest.mark.parametrize("phase", ["connect", "ehlo", "mail", "rcpt", "data", "eod"])
@pytest.mark.parametrize(
    "turn",
    ["421 4.3.2 going down", "451 4.3.0 not now", "25", b"250ok\r\n", b"250 ok\r\n250 ok\r\n", CLOSE, RESET],
    ids=["421", "451", "half a reply", "no reply", "two replies", "close", "reset"],
)
async def test_nothing_is_lost_or_bounced_whatever_the_upstream_does_once(
    tmp_path: Path, phase: str, turn: object
) -> None:
    script = Script(**{phase: turns([turn, CLOSE] if turn == "25" else turn)})  # type: ignore[arg-type]  # any phase
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        queue_id = relay.accept()

        def resume() -> bool:
            relay.dispatcher.pausing.end()
            relay.dispatcher.wake()
            return len(relay.sender.queue) == 0 and bool(host.relayed)

        await relay.until(resume)

        assert {r.content for r in host.relayed} == {CONTENT}
        totals = await relay.sender.spool_thread.totals()
        assert (totals.accepted, totals.relayed, totals.queued) == (1, 1, 0)
        relay.events.flush()
        assert f"{queue_id}: removed" in relay.log.getvalue()


async def test_a_message_past_its_lifetime_expires_with_a_refusal(tmp_path: Path) -> None:
    retry = "retry: {min: 1ms, max: 1ms, lifetime: 2ms, warn_after: null}"
    async with (
        Smarthost(Script(rcpt=lambda argument: "451 later" if "b@" in argument else "250 ok")) as host,
        Relay(policy_of(tmp_path, host.port, rest=retry)) as relay,
    ):
        relay.accept()
        await relay.until_empty()

        (report,) = host.relayed
        assert b"Status: 5.4.7" in report.content
        totals = await relay.sender.spool_thread.totals()
        assert (totals.expired, totals.relayed) == (1, 1)


async def test_a_queue_survives_a_restart_and_goes_on(tmp_path: Path) -> None:
    async with Smarthost(Script(connect="421 not yet")) as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            sent = {relay.accept(f"r{n}@x.example") for n in range(5)}
            await relay.until(lambda: relay.dispatcher.pausing.because)
        host.script = Script()
        async with Relay(policy) as relay:
            await relay.until(lambda: relay.dispatcher.pausing.because)
            assert relay.sender.upstreams.resume("isp")
            await relay.until_empty()

            assert len(host.relayed) == len(sent)
            assert await relay.sender.spool_thread.totals() == Totals(accepted=5, relayed=5)


async def test_a_damaged_message_is_set_aside_and_the_rest_goes_on(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        relay = Relay(policy)
        damaged = relay.accept("damaged@x.example")
        path = policy.spool / "new" / damaged
        path.write_bytes(re.sub(rb"hello\r\n\.", rb"jello\r\n.", path.read_bytes()))
        async with relay:
            relay.accept("whole@x.example")
            await relay.until(lambda: host.relayed and len(relay.sender.queue) == 0)

            assert [r.recipients for r in host.relayed] == [["whole@x.example"]]
            assert [path.name for path in (policy.spool / "corrupt").iterdir()] == [damaged]
            assert relay.told == ["the content does not match its checksum"]


async def test_long_content_that_is_damaged_never_reaches_its_final_dot(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        relay = Relay(policy)
        damaged = relay.accept("damaged@x.example", content=CONTENT + b"line\r\n" * 200_000)
        path = policy.spool / "new" / damaged
        path.write_bytes(path.read_bytes().replace(b"hello\r\n.", b"jello\r\n."))
        async with relay:
            relay.accept("whole@x.example")
            await relay.until(lambda: host.relayed and len(relay.sender.queue) == 0)

            assert [r.recipients for r in host.relayed] == [["whole@x.example"]]
            assert [path.name for path in (policy.spool / "corrupt").iterdir()] == [damaged]


async def test_an_edit_of_a_limit_counts_at_once_on_the_same_history(tmp_path: Path) -> None:
    async with Smarthost() as host:
        tight = policy_of(tmp_path, host.port, ", limits: [{messages: 1, per: 1h}]")
        async with Relay(tight) as relay:
            for number in range(3):
                relay.accept(f"r{number}@x.example")
            await relay.until(lambda: len(host.relayed) == 1 and relay.dispatcher.throttle.room() == 0)

            await relay.sender.apply(policy_of(tmp_path, host.port, ", limits: [{messages: 2, per: 1h}]"))
            await relay.until(lambda: len(host.relayed) == 2 and relay.dispatcher.throttle.room() == 0)

            await relay.sender.apply(policy_of(tmp_path, host.port))
            await relay.until_empty()
            assert len(host.relayed) == 3


async def test_an_operator_holds_releases_bounces_and_deletes(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(connect="421 not yet")) as host,
        Relay(policy_of(tmp_path, host.port)) as relay,
    ):
        held, bounced, deleted = (
            relay.accept(f"{name}@x.example") for name in ("held", "bounced", "deleted")
        )
        await relay.until(lambda: len(relay.sender.queue) == 3 and relay.dispatcher.pausing.because)

        assert await relay.operator.act("hold", [held]) == {held: OK}
        assert await relay.operator.act("bounce", [bounced]) == {bounced: OK}
        assert await relay.operator.act("delete", [deleted]) == {deleted: OK}
        host.script = Script()
        relay.dispatcher.pausing.end()
        relay.dispatcher.wake()
        await relay.until(lambda: len(relay.sender.queue) == 1)

        queued = relay.queued(held)
        assert queued is not None
        assert queued.state is State.HELD
        assert (relay.policy.spool / "hold" / held).exists()
        assert await relay.operator.act("release", [held]) == {held: OK}
        await relay.until_empty()
        assert sorted(r.recipients[0] for r in host.relayed) == ["a@here.example", "held@x.example"]
        assert await relay.sender.spool_thread.totals() == Totals(accepted=4, relayed=2, bounced=1, deleted=1)


async def test_what_became_of_a_recipient_is_told_with_its_message_id(tmp_path: Path) -> None:
    script = Script(rcpt=turns("250 ok", "550 5.1.1 no"))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port), style="json") as relay:
        relay.accept("b@x.example", "c@x.example", content=b"Message-Id:\r\n <1@here.example>\r\n" + CONTENT)
        await relay.until_empty()
        relay.events.flush()

    told = [json.loads(line) for line in relay.log.getvalue().splitlines()]
    ends = {event["recipient"]: event for event in told if event["event"] == "delivery"}
    assert [ends[each]["message_id"] for each in ("b@x.example", "c@x.example")] == ["<1@here.example>"] * 2
    assert ends["c@x.example"]["text"] == "550 5.1.1 no"
