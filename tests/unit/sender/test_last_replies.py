"""What each recipient was told last is kept and shown, over a restart too."""

from pathlib import Path

from relay.control.operations import OK
from relay.mail.envelope import QueueId
from relay.status.snapshot import MessageView, RecipientView
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.sender.in_process_relay import Relay
from tests.unit.sender.test_reports_at_once import is_deferred, patient


def replies(argument: str) -> str:
    for name, reply in {"slow": "450 4.2.0 come again", "full": "452 4.2.2 Mailbox full"}.items():
        if name in argument:
            return reply
    return "550 5.1.1 no such user" if "gone" in argument else "250 ok"


async def shown(relay: Relay, queue_id: QueueId) -> dict[str, RecipientView]:
    view = await relay.operator.show(queue_id)
    assert isinstance(view, MessageView)
    return {each.address.partition("@")[0]: each for each in view.recipient_statuses}


async def test_each_recipients_own_last_reply_is_shown_also_after_a_restart(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=replies)) as host:
        policy = patient(tmp_path, host.port)
        to = [f"{name}@there.example" for name in ("slow", "full", "gone", "here")]
        async with Relay(policy) as relay:
            queue_id = relay.accept(*to)
            await relay.until(lambda: is_deferred(relay, queue_id))
            before = await shown(relay, queue_id)
        host.script.rcpt = lambda argument: replies(argument).replace("come again", "and again")
        async with Relay(policy) as relay:
            assert [(each.status, each.attempts) for each in before.values()] == [
                ("to do", 1),
                ("to do", 1),
                ("bounced", 1),
                ("relayed", 1),
            ]
            after = await shown(relay, queue_id)
            assert {name: each.text for name, each in after.items()} == {
                "slow": "450 4.2.0 come again",
                "full": "452 4.2.2 Mailbox full",
                "gone": "550 5.1.1 no such user",
                "here": "",
            }
            assert after["gone"].reported
            assert after["full"].next_attempt_at_ns is not None
            assert after["gone"].next_attempt_at_ns is None
            assert await relay.operator.act("retry", [queue_id]) == {queue_id: OK}
            await relay.until(lambda: is_deferred(relay, queue_id))
            again = await shown(relay, queue_id)
            assert (again["slow"].text, again["slow"].attempts) == ("450 4.2.0 and again", 2)
            assert again["slow"].last_attempt_at_ns is not None


async def test_what_was_not_tried_yet_has_no_reply(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(mail="421 not now")) as host,
        Relay(patient(tmp_path, host.port)) as relay,
    ):
        queue_id = relay.accept("here@there.example")
        await relay.until(lambda: relay.dispatcher.pausing.because and relay.dispatcher.in_flight == 0)

        (recipient,) = (await shown(relay, queue_id)).values()
        assert (recipient.text, recipient.attempts, recipient.last_attempt_at_ns) == ("", 0, None)
