"""A rest is as long as whoever asked for most of it, and what the upstream never saw proves nothing to it."""

import asyncio
from pathlib import Path

from relay.clock import SECOND_NS
from tests.fakes.smarthost import DEFAULT, Script, Smarthost, Until, turns
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock
from tests.unit.sender.test_verdicts import with_password

HOUR_NS = 3600 * SECOND_NS


async def test_refused_credentials_stop_also_while_an_older_connection_works(
    tmp_path: Path,
) -> None:
    release = asyncio.Event()
    script = Script(auth=turns("235 2.7.0 ok", "535 5.7.8 wrong"), eod=turns([Until(release), "250 ok"]))
    async with (
        Smarthost(script, accounts={"mjd": "right"}) as host,
        Relay(policy_of(tmp_path, host.port, with_password(tmp_path, "right"))) as relay,
    ):
        relay.accept()
        await relay.until(lambda: relay.account.in_flight)
        relay.accept()
        await relay.until(lambda: relay.account.pausing.state.is_refused)
        release.set()
        await relay.until(lambda: len(host.relayed) == 1 and relay.account.in_flight == 0)

        assert relay.account.pausing.state.is_refused
        assert len(relay.sender.queue) == 1


async def test_no_more_connections_are_tried_for_as_long_as_the_upstream_asks(tmp_path: Path) -> None:
    release, clock = asyncio.Event(), virtual_clock()
    refusal = "454 4.7.0 Too many login attempts, please try again in 10 minutes"
    script = Script(auth=turns("235 2.7.0 ok", refusal), eod=turns([Until(release), "250 ok"]))
    async with (
        Smarthost(script, accounts={"mjd": "right"}) as host,
        Relay(policy_of(tmp_path, host.port, with_password(tmp_path, "right")), clock=clock) as relay,
    ):
        relay.accept()
        await relay.until(lambda: relay.account.in_flight)
        relay.accept()
        await host.until(lambda: len(host.sessions) == 2 and not host.sessions[1].is_open)
        clock.advance(5 * 60 * SECOND_NS)
        relay.account.wake()
        relay.accept()
        await relay.until(lambda: len(relay.sender.queue) == 3)
        release.set()
        await relay.until_empty()

        assert sum(command.startswith("AUTH") for command in host.commands) == 2


async def test_one_connection_too_many_does_not_stop_the_one_that_works(tmp_path: Path) -> None:
    release = asyncio.Event()
    script = Script(
        connect=turns(DEFAULT, *["421 4.7.0 too many connections"] * 90),
        eod=turns([Until(release), "250 ok"], DEFAULT),
    )
    # It is tried again after a while, which does not pass.
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept()
        await relay.until(lambda: relay.account.in_flight)
        relay.accept()
        await host.until(lambda: len(host.sessions) == 2 and not host.sessions[1].is_open)
        for _ in range(60):
            relay.accept()
        release.set()
        await relay.until_empty()

        assert "paused" not in relay.log.getvalue()
        # Not tried again with each message: the one that works is handed on from message to message.
        assert len(host.sessions) == 2


async def test_an_edit_of_something_else_ends_no_pause(tmp_path: Path) -> None:
    rules = ", verdicts: [{text: 'too much * of you', verdict: pause, wait: 1h}]"
    async with (
        Smarthost(Script(mail="450 4.7.1 too much mail of you")) as host,
        Relay(policy_of(tmp_path, host.port, rules)) as relay,
    ):
        relay.accept()
        await relay.until(lambda: relay.account.pausing.state.why)
        until_ns = relay.account.pausing.state.until_ns
        await relay.sender.apply(policy_of(tmp_path, host.port, rules + ", limits: [{messages: 9, per: 1h}]"))

        assert relay.account.pausing.state.why
        assert relay.account.pausing.state.until_ns == until_ns
