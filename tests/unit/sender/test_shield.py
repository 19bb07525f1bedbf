"""A list whose upstream cuts us off in words that nobody knows: nobody bounces until the operator says so."""

from pathlib import Path

from relay.clock import SECOND_NS
from relay.control.operations import ABSENT, OK
from relay.verdicts.shield import WINDOW
from tests.fakes.clock import LeapingClock
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.unit.sender.in_process_relay import Relay, policy_of

CUT_OFF = "550 Administrative prohibition"
NOBODY = "550 5.1.1 no such user here"
PATIENT = "retry: {min: 1h, max: 4h, lifetime: 5d, warn_after: null}"
HOUR_NS = 3600 * SECOND_NS
SUBSCRIBERS = [f"s{number}@there.example" for number in range(30)]


async def _stopped(relay: Relay) -> None:
    await relay.until(lambda: relay.dispatcher.pausing.is_refused and relay.dispatcher.in_flight == 0)


def _asked(host: Smarthost) -> int:
    return sum(command.startswith("RCPT") for command in host.commands)


async def test_a_list_cut_off_in_unknown_words_waits_to_be_resumed(tmp_path: Path) -> None:
    script = Script(rcpt=turns(*[CUT_OFF] * 30))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept(*SUBSCRIBERS)
        await _stopped(relay)
        assert (
            "30 recipients in a row were refused alike: 550 Administrative"
            in relay.dispatcher.pausing.because
        )
        assert host.relayed == []
        totals = await relay.sender.spool_thread.totals()
        assert (totals.bounced, totals.queued) == (0, 30)

        assert await relay.operator.resume("isp") == OK
        await relay.until_empty()
        assert sorted(host.relayed[0].recipients) == sorted(SUBSCRIBERS)
        assert len(host.relayed) == 1


async def test_single_messages_cut_off_one_by_one_are_not_bounced(tmp_path: Path) -> None:
    # Not ten turns: the eleventh transaction may have begun before the tenth refusal is heard.
    refuses = [True]

    def rcpt(_: str) -> str:
        return CUT_OFF if refuses[0] else "250 ok"

    async with (
        Smarthost(Script(rcpt=rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, ", shield: {in_a_row: 10}")) as relay,
    ):
        for subscriber in SUBSCRIBERS:
            relay.accept(subscriber)
        await _stopped(relay)
        assert host.relayed == []
        refuses[0] = False
        await relay.operator.resume("isp")
        await relay.until_empty()
        assert sorted(relayed.recipients[0] for relayed in host.relayed) == sorted(SUBSCRIBERS)


async def test_what_the_operator_believes_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    def rcpt(argument: str) -> str:
        return CUT_OFF if "s" in argument.partition("@")[0].rpartition("<")[2] else "250 ok"

    async with Smarthost(Script(rcpt=rcpt)) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept(*SUBSCRIBERS)
        await _stopped(relay)
        assert await relay.operator.resume("isp", believes=True) == OK
        await relay.until_empty()

        (report,) = host.relayed
        assert report.reverse_path == ""
        assert report.content.count(b"Final-Recipient:") == 30
        assert b"Administrative prohibition" in report.content
        totals = await relay.sender.spool_thread.totals()
        assert (totals.bounced, totals.relayed) == (30, 1)


async def test_an_unknown_refusal_bounces_once_others_went_through(tmp_path: Path) -> None:
    def rcpt(argument: str) -> str:
        return CUT_OFF if "gone@" in argument else "250 ok"

    async with Smarthost(Script(rcpt=rcpt)) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept("gone@there.example")
        # Asked again, so it was not bounced by the first.
        await relay.until(lambda: sum("gone@" in command for command in host.commands) >= 2)
        relay.accept("here@there.example")
        await relay.until_empty()

        reports = [relayed for relayed in host.relayed if relayed.reverse_path == ""]
        assert len(reports) == 1
        assert b"gone@there.example" in reports[0].content


async def test_a_shield_that_is_off_believes_at_once(tmp_path: Path) -> None:
    def rcpt(argument: str) -> str:
        return CUT_OFF if "s1" in argument else "250 ok"

    async with (
        Smarthost(Script(rcpt=rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, ", shield: null")) as relay,
    ):
        relay.accept(*(subscriber for subscriber in SUBSCRIBERS if subscriber.startswith("s1")))
        await relay.until_empty()
        assert len([command for command in host.commands if command.startswith("RCPT TO:<s1")]) == 11


async def test_there_is_nothing_to_resume_where_there_is_no_such_upstream(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        assert await relay.operator.resume("nobody", believes=True) == ABSENT


async def test_a_trickle_that_goes_through_makes_no_refusal_believed(
    tmp_path: Path,
) -> None:
    asked: list[str] = []
    lets = [3]

    def rcpt(argument: str) -> str:
        asked.append(argument)
        return CUT_OFF if len(asked) % lets[0] else "250 ok"

    async with Smarthost(Script(rcpt=rcpt)) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        for subscriber in SUBSCRIBERS:
            relay.accept(subscriber)
        await _stopped(relay)
        assert (
            f"of the last {WINDOW} recipients were refused alike: 550 Adm" in relay.dispatcher.pausing.because
        )
        totals = await relay.sender.spool_thread.totals()
        assert (totals.bounced, totals.relayed) == (0, len(host.relayed))

        lets[0] = 1
        assert await relay.operator.resume("isp") == OK
        await relay.until_empty()
        assert sorted(relayed.recipients[0] for relayed in host.relayed) == sorted(SUBSCRIBERS)


async def test_restarts_do_not_end_a_stop_and_bounce_nobody(tmp_path: Path) -> None:
    clock, says = LeapingClock(), [NOBODY]
    async with Smarthost(Script(rcpt=lambda _: says[0])) as host:
        policy = policy_of(tmp_path, host.port, rest=PATIENT)
        async with Relay(policy, clock=clock) as relay:
            for subscriber in SUBSCRIBERS:
                relay.accept(subscriber, sender="")
            await _stopped(relay)
            bounced = (await relay.sender.spool_thread.totals()).bounced
        assert bounced == 9
        for hours_later, asks in ((0, 0), (0, 0), (2, 1), (2, 1), (0, 0)):
            clock.ahead_ns += hours_later * HOUR_NS
            asked = _asked(host)
            async with Relay(policy, clock=clock) as relay:
                await _stopped(relay)
                assert "10 recipients in a row were refused alike" in relay.dispatcher.pausing.because
                assert (await relay.sender.spool_thread.totals()).bounced == bounced
            # Once its hour is over, one message asks whether all is well.
            assert _asked(host) - asked == asks

        says[0] = "250 ok"
        async with Relay(policy, clock=clock) as relay:
            await _stopped(relay)
            assert await relay.operator.resume("isp") == OK
            await relay.until_empty()
            assert len(host.relayed) == len(SUBSCRIBERS) - bounced


async def test_a_restart_in_the_hourly_look_does_not_end_a_stop(
    tmp_path: Path,
) -> None:
    clock = LeapingClock()
    async with Smarthost(Script(rcpt=NOBODY)) as host:
        policy = policy_of(tmp_path, host.port, rest=PATIENT, connections=1)
        async with Relay(policy, clock=clock) as relay:
            for subscriber in SUBSCRIBERS:
                relay.accept(subscriber, sender="")
            await _stopped(relay)
            relay.dispatcher.pausing.until_ns(clock.boottime_ns() + HOUR_NS)
            assert relay.dispatcher.pausing.is_proving
        async with Relay(policy, clock=clock) as relay:
            await _stopped(relay)
            assert (await relay.sender.spool_thread.totals()).bounced == 9


async def test_an_operators_word_holds_over_a_restart(tmp_path: Path) -> None:
    says = [CUT_OFF]
    async with Smarthost(Script(rcpt=lambda _: says[0])) as host:
        policy = policy_of(tmp_path, host.port, rest=PATIENT)
        async with Relay(policy) as relay:
            relay.accept(*SUBSCRIBERS)
            await _stopped(relay)
            says[0] = "451 4.3.0 not now"
            assert await relay.operator.resume("isp") == OK
            await relay.until(
                lambda: _asked(host) == 2 * len(SUBSCRIBERS) and relay.dispatcher.in_flight == 0
            )
        says[0] = NOBODY
        async with Relay(policy) as relay:
            relay.accept("gone@there.example", sender="")
            await relay.until(lambda: any("gone@" in command for command in host.commands))
            await relay.until(lambda: relay.dispatcher.in_flight == 0)
            assert not relay.dispatcher.pausing.because
            assert (await relay.sender.spool_thread.totals()).bounced == 1


async def test_an_edit_of_the_verdicts_answers_the_shield_as_well(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=CUT_OFF)) as host,
        Relay(policy_of(tmp_path, host.port)) as relay,
    ):
        for subscriber in SUBSCRIBERS:
            relay.accept(subscriber, sender="")
        await _stopped(relay)
        assert (await relay.sender.spool_thread.totals()).bounced == 0
        rule = '{phase: rcpt, text: "administrative prohibition", verdict: bounce recipient}'
        await relay.sender.apply(policy_of(tmp_path, host.port, f", verdicts: [{rule}]"))
        # They are counted anew: nine are believed before it asks again.
        await relay.until(lambda: len(relay.sender.queue) < len(SUBSCRIBERS))
        await _stopped(relay)
        assert (await relay.sender.spool_thread.totals()).bounced == 9


async def test_what_was_believed_once_is_believed_of_others(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=lambda argument: "250 ok" if "a@here" in argument else CUT_OFF)) as host,
        Relay(policy_of(tmp_path, host.port, rest=PATIENT)) as relay,
    ):
        relay.accept(*SUBSCRIBERS)
        await _stopped(relay)
        assert await relay.operator.resume("isp", believes=True) == OK
        await relay.until_empty()
        relay.accept("another@there.example")
        await relay.until_empty()
        assert (await relay.sender.spool_thread.totals()).bounced == 31
