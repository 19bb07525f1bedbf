"""An account cut off in words that no rule knows bounces nobody; one sender's fault stops no other.

Also the night of the article: 500 subscribers, and an ISP that takes 100 an hour and refuses more with 550.
"""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.policy.lane import LimitSettings
from relay.policy.model import Policy
from relay.policy.units import HostPort
from relay.practice.smarthost import PracticeAccount, PracticeMessage, PracticeSmarthost
from relay.smtp.sasl import Credentials
from relay.verdicts.account import within_ns
from tests.fakes.smarthost import Script, Smarthost, Turn
from tests.fakes.virtual_time import pass_time
from tests.unit.sender.in_process_relay import Relay, hurry, policy_of, virtual_clock

CUT_OFF = "550 Administrative prohibition"
PATIENT = "retry: {min: 1h, max: 4h, lifetime: 5d, warn_after: null}"
HOUR_S = 3600
HOUR_NS = HOUR_S * SECOND_NS
SUBSCRIBERS = [f"s{number}@there.example" for number in range(30)]


async def _stopped(relay: Relay) -> None:
    await relay.until(lambda: relay.account.pausing.state.is_stopped and relay.account.in_flight == 0)


def _asked(host: Smarthost) -> int:
    return sum(command.startswith("RCPT") for command in host.commands)


async def test_refusals_that_a_new_rule_of_the_operator_knows_are_reported_at_once(tmp_path: Path) -> None:
    def rcpt(argument: str) -> str:
        return CUT_OFF if argument.startswith("TO:<s") else "250 ok"

    rule = ", verdicts: [{phase: rcpt, text: administrative prohibition, verdict: bounce recipient}]"
    async with Smarthost(Script(rcpt=rcpt)) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept(*SUBSCRIBERS)
        await relay.until(lambda: relay.line.sender_pauses.senders() and relay.account.in_flight == 0)
        await relay.sender.apply(policy_of(tmp_path, host.port, rule))
        await relay.until_empty()
        (report,) = host.relayed
        assert report.reverse_path == ""
        assert report.content.count(b"Final-Recipient:") == 30
        assert b"Administrative prohibition" in report.content
        assert relay.sender.totals["bounced"] == 30


async def test_after_a_restart_a_row_of_refusals_stops_the_upstream_again_and_bounces_nobody(
    tmp_path: Path,
) -> None:
    says = [CUT_OFF]
    async with Smarthost(Script(rcpt=lambda _: says[0])) as host:
        policy = policy_of(tmp_path, host.port, rest=PATIENT)
        asked = 0
        for _ in range(2):
            async with Relay(policy) as relay:
                if not asked:
                    for number, subscriber in enumerate(SUBSCRIBERS):
                        relay.accept(subscriber, sender=f"u{number % 3}@here.example")
                await _stopped(relay)
                assert "in a row were refused in the same words" in relay.account.pausing.state.why
                assert relay.sender.totals["bounced"] == 0
            asked, before = _asked(host), asked
            assert asked - before <= 10 + policy.upstreams["isp"].connections

        says[0] = "250 ok"
        async with Relay(policy) as relay:
            hurry(300)
            await relay.until_empty()
        assert len(host.relayed) == len(SUBSCRIBERS)


async def test_an_upstream_is_used_again_even_if_a_refused_message_is_in_a_transaction(
    tmp_path: Path,
) -> None:
    says = [CUT_OFF]
    async with (
        Smarthost(Script(rcpt=lambda _: says[0])) as host,
        Relay(policy_of(tmp_path, host.port, rest=PATIENT)) as relay,
    ):
        ids = [
            relay.accept(subscriber, sender=f"u{number % 3}@here.example")
            for number, subscriber in enumerate(SUBSCRIBERS)
        ]
        await _stopped(relay)
        before = {queue_id: relay.sender.queue.seize(queue_id) for queue_id in ids[:3]}
        says[0] = "250 ok"
        assert await relay.operator.resume("isp") == OK
        for queue_id, states in before.items():
            relay.sender.queue.put_back(queue_id, states)
        hurry(300)
        await relay.until_empty()
        assert len(host.relayed) == len(SUBSCRIBERS)


AN_OFFENCE = "421 4.7.0 too much from you, come back later"
NOT_HIS = "553 5.7.1 Sender address rejected: not owned by user mjd"
DENIED = "554 5.7.1 Relay access denied"
RETRY = "retry: {min: 1m, max: 1h, lifetime: 1d, warn_after: null}"


def of_one(folder: Path, host: Smarthost, steps_s: int) -> Policy:
    hurry(steps_s)
    return policy_of(folder, host.port, ", pipelining: false", RETRY, connections=1)


async def other_mail(relay: Relay, hours: int) -> None:
    for _ in range(hours):
        relay.accept("good@there.example", sender="boss@here.example")
        await pass_time(HOUR_S)


@pytest.mark.parametrize(
    ("phase", "said", "most_hours"),
    [("mail", AN_OFFENCE, 4), ("rcpt", DENIED, 7)],
    ids=["a pause each time", "a stop each time"],
)
async def test_a_message_that_alone_is_refused_delays_others_briefly_and_is_returned_in_the_end(
    tmp_path: Path, phase: str, said: str, most_hours: int
) -> None:
    def answer(argument: str) -> Turn:
        return said if "poison" in argument and not argument.startswith("TO:<poison@here") else "250 ok"

    script = Script()
    setattr(script, phase, answer)
    async with Smarthost(script) as host, Relay(of_one(tmp_path, host, 300)) as relay:
        poison = relay.accept("poison@there.example", sender="poison@here.example")
        await other_mail(relay, hours=24)
        assert relay.queued(poison) is not None
        rested_ns = within_ns(relay.account.pausing.state.spans, 0, virtual_clock().boottime_ns())
        await other_mail(relay, hours=6)

        # Its first refusals pause the upstream, like any refusals; the later ones do not.
        assert within_ns(relay.account.pausing.state.spans, 0, virtual_clock().boottime_ns()) == rested_ns
        assert rested_ns <= most_hours * HOUR_NS
        assert relay.queued(poison) is None
        assert (relay.sender.totals["expired"], relay.sender.totals["bounced"]) == (1, 0)
        (report,) = [each for each in host.relayed if each.reverse_path == ""]
        assert report.recipients == ["poison@here.example"]
        assert said.encode()[10:30] in report.content


async def test_a_refusal_of_every_sender_bounces_nothing_however_long_it_lasts(tmp_path: Path) -> None:
    async with Smarthost(Script(mail=NOT_HIS)) as host, Relay(of_one(tmp_path, host, 1800)) as relay:
        for number in range(10):
            relay.accept(sender=f"s{number}@here.example")
        await pass_time(48 * HOUR_S)
        assert len(relay.sender.queue) == 10

        host.script = Script()
        await relay.until_empty()
        assert len(host.relayed) == 10


LIST = [f"r{number}@list{number % 7}.example" for number in range(500)]


async def test_500_subscribers_get_the_mail_within_4_3_hours_and_the_isps_limit_holds(tmp_path: Path) -> None:
    clock, taken = virtual_clock(), list[PracticeMessage]()
    allows = LimitSettings.model_validate({"recipients": 100, "per": "1h"})
    account, address = PracticeAccount(allows, HOUR_NS), HostPort("127.0.0.1", 0)
    isp = PracticeSmarthost(address, Credentials("mjd", "correct"), account, clock, observer=taken.append)
    await isp.start()
    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text("correct")
    keys = f", auth: {{user: mjd, password_file: {password}}}, limits: [{{recipients: 100, per: 1h}}]"
    began_ns = clock.boottime_ns()
    async with Relay(policy_of(tmp_path, isp.port, keys)) as relay:
        relay.accept(*LIST, sender="list-bounces@here.example")
        hurry(30)
        await relay.until_empty()
        assert (relay.sender.totals["bounced"], relay.sender.totals["expired"]) == (0, 0)
    await isp.close()

    assert clock.boottime_ns() - began_ns < 4.3 * HOUR_NS
    assert (account.most, account.cut_offs) == (100, 0)
    relayed = [each for each in taken if each.reply.startswith("250")]
    # A report to the list would be among these.
    assert {each.reverse_path for each in relayed} == {"list-bounces@here.example"}
    assert sorted(recipient for each in relayed for recipient in each.recipients) == sorted(LIST)
