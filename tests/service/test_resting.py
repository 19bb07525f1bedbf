"""A rest is as long as whoever asked for most of it, and what the upstream never saw proves nothing to it."""

import asyncio
from pathlib import Path

from relay.clock import SECOND_NS
from relay.outcome import Answer, Outcome
from relay.reply import Phase
from relay.resting import FIRST_REST_NS
from relay.scheduler import Scheduler
from relay.verdict import Verdict
from tests.fakes.clock import LeapingClock
from tests.fakes.smarthost import DEFAULT, Script, Smarthost, Until, turns
from tests.service.house import House, policy_of
from tests.service.test_verdicts import HOUR_NS, World, with_password

BUSY = "421 4.3.2 busy"
NO_PROBES = "550 - Stop, you are sending too fast!"


def test_a_longer_rest_that_another_transaction_is_asked_for_counts() -> None:
    world = World()
    world.refused(Phase.MAIL, BUSY)
    short_ns = world.rests_ns()
    world.refused(Phase.EOD, NO_PROBES)

    assert short_ns == 15 * SECOND_NS
    assert world.rests_ns() == HOUR_NS
    assert "too fast" in world.pausing.because
    assert world.kept[-1].until_ns == world.pausing.paused_until_ns


def test_a_shorter_one_does_not() -> None:
    world = World()
    world.refused(Phase.EOD, NO_PROBES)
    world.refused(Phase.MAIL, BUSY)
    world.refused(Phase.MAIL, "450 4.7.1 rate limit exceeded, try again in 2 minutes")

    assert world.rests_ns() == HOUR_NS


def test_what_was_in_flight_together_is_one_pause_in_a_row() -> None:
    world = World()
    for _ in range(4):
        world.refused(Phase.MAIL, BUSY)
        world.clock.advance(SECOND_NS)

    assert world.rests_ns() == 11 * SECOND_NS
    world.clock.advance(15 * SECOND_NS)
    assert world.rests_ns() is None
    world.refused(Phase.MAIL, BUSY)
    assert world.rests_ns() == 30 * SECOND_NS


def test_a_message_that_we_refuse_ourselves_does_not_prove_the_upstream() -> None:
    world = World()
    world.refused(Phase.MAIL, BUSY)
    world.pausing.end()
    ours = Answer(Verdict.BOUNCE, Phase.MAIL, None, "no address by RFC 5321", own_status="5.1.3")
    world.pausing.feel(Outcome((ours,)))
    assert world.pausing.is_proving

    world.pausing.feel(Outcome((ours, Answer(Verdict.RELAYED, Phase.EOD, None, "250 ok"))))
    assert not world.pausing.is_proving


async def test_refused_credentials_stop_the_upstream_also_while_an_older_connection_works(
    tmp_path: Path,
) -> None:
    release = asyncio.Event()
    script = Script(auth=turns("235 2.7.0 ok", "535 5.7.8 wrong"), eod=turns([Until(release), "250 ok"]))
    async with (
        Smarthost(script, accounts={"mjd": "right"}) as host,
        House(policy_of(tmp_path, host.port, with_password(tmp_path, "right"))) as house,
    ):
        house.accept()
        await house.until(lambda: house.heart.in_flight)
        house.accept()
        await house.until(lambda: house.heart.pausing.is_refused)
        release.set()
        await house.until(lambda: len(host.relayed) == 1 and house.heart.in_flight == 0)

        assert house.heart.pausing.is_refused
        assert len(house.sender.scheduler) == 1


async def test_no_more_connections_are_tried_for_as_long_as_the_upstream_asks(tmp_path: Path) -> None:
    release, clock = asyncio.Event(), LeapingClock()
    refusal = "454 4.7.0 Too many login attempts, please try again in 10 minutes"
    script = Script(auth=turns("235 2.7.0 ok", refusal), eod=turns([Until(release), "250 ok"]))
    async with (
        Smarthost(script, accounts={"mjd": "right"}) as host,
        House(policy_of(tmp_path, host.port, with_password(tmp_path, "right")), clock=clock) as house,
    ):
        house.accept()
        await house.until(lambda: house.heart.in_flight)
        house.accept()
        await host.until(lambda: len(host.sessions) == 2 and not host.sessions[1].is_open)
        clock.ahead_ns += 5 * 60 * SECOND_NS
        house.heart.wake()
        house.accept()
        await house.until(lambda: len(house.sender.scheduler) == 3)
        release.set()
        await house.until_empty()

        assert sum(command.startswith("AUTH") for command in host.commands) == 2


async def test_one_connection_too_many_does_not_stop_the_one_that_works(tmp_path: Path) -> None:
    release = asyncio.Event()
    script = Script(
        connect=turns(DEFAULT, *["421 4.7.0 too many connections"] * 90),
        eod=turns([Until(release), "250 ok"], DEFAULT),
    )
    async with Smarthost(script) as host, House(policy_of(tmp_path, host.port)) as house:
        house.accept()
        await house.until(lambda: house.heart.in_flight)
        house.accept()
        await host.until(lambda: len(host.sessions) == 2 and not host.sessions[1].is_open)
        for _ in range(60):
            house.accept()
        release.set()
        await house.until_empty()

        assert "paused" not in house.log.getvalue()
        # Not tried again with each message: the one that works is handed on from message to message.
        assert len(host.sessions) == 2


def test_refusals_of_one_sender_that_were_in_flight_together_are_one_rest_in_a_row() -> None:
    scheduler = Scheduler()
    for at_ns in (0, SECOND_NS, 5 * SECOND_NS):
        assert scheduler.resting.begin("bad@here.example", at_ns, "not yours") == FIRST_REST_NS

    assert scheduler.resting.begin("bad@here.example", FIRST_REST_NS, "not yours") == 3 * FIRST_REST_NS


async def test_an_edit_of_something_else_ends_no_pause(tmp_path: Path) -> None:
    rules = ", verdicts: [{text: 'too much * of you', verdict: pause, wait: 1h}]"
    async with (
        Smarthost(Script(mail="450 4.7.1 too much mail of you")) as host,
        House(policy_of(tmp_path, host.port, rules)) as house,
    ):
        house.accept()
        await house.until(lambda: house.heart.pausing.because)
        until_ns = house.heart.pausing.paused_until_ns
        await house.sender.apply(policy_of(tmp_path, host.port, rules + ", limits: [{messages: 9, per: 1h}]"))

        assert house.heart.pausing.because
        assert house.heart.pausing.paused_until_ns == until_ns
