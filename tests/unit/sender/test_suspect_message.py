"""A message, or a sender, that an upstream refuses for ever as if because of us: it keeps nobody, and ends.

And where it is because of us: nothing is returned, however long it lasts.
"""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.policy.model import Policy
from tests.fakes.smarthost import Script, Smarthost, Turn
from tests.fakes.virtual_time import pass_time
from tests.unit.sender.in_process_relay import Relay, hurry, policy_of, virtual_clock

HOUR_S = 3600
AN_OFFENCE = "421 4.7.0 too much from you, come back later"
NOT_HIS = "553 5.7.1 Sender address rejected: not owned by user mjd"
DENIED = "554 5.7.1 Relay access denied"
RETRY = "retry: {min: 1m, max: 1h, lifetime: 1d, warn_after: null}"


def of_one(folder: Path, host: Smarthost, steps_s: int = 300) -> Policy:
    hurry(steps_s)
    return policy_of(folder, host.port, ", pipelining: false", RETRY, connections=1)


def refusing(said: str) -> Script:
    """Return a script that says this to the sender, or to the recipient, of one kind of message."""

    def answer(argument: str) -> Turn:
        return said if "poison" in argument and not argument.startswith("TO:<poison@here") else "250 ok"

    return Script(rcpt=answer) if said == DENIED else Script(mail=answer)


async def other_mail(relay: Relay, hours: int) -> None:
    for _ in range(hours):
        relay.accept("good@there.example", sender="boss@here.example")
        await pass_time(HOUR_S)


@pytest.mark.parametrize(
    ("said", "most_hours"),
    [(AN_OFFENCE, 4), (DENIED, 7), (NOT_HIS, 0)],
    ids=["a pause each time", "a stop each time", "a pause of its sender"],
)
async def test_a_message_refused_alone_keeps_no_other_for_long_and_is_returned_after_its_lifetime(
    tmp_path: Path, said: str, most_hours: int
) -> None:
    async with Smarthost(refusing(said)) as host, Relay(of_one(tmp_path, host)) as relay:
        poison = relay.accept("poison@there.example", sender="poison@here.example")
        await other_mail(relay, hours=24)
        assert relay.queued(poison) is not None
        rested_ns = relay.account.pausing.paused_ns(0, virtual_clock().boottime_ns())
        await other_mail(relay, hours=6)

        # Its first refusals paused the upstream, as anybody's do; the later ones did not.
        assert relay.account.pausing.paused_ns(0, virtual_clock().boottime_ns()) == rested_ns
        assert rested_ns <= most_hours * HOUR_S * SECOND_NS
        assert relay.queued(poison) is None
        totals = relay.sender.totals
        assert (totals.expired, totals.bounced) == (1, 0)
        (report,) = [r for r in host.relayed if r.reverse_path == ""]
        assert report.recipients == ["poison@here.example"]
        assert said.encode()[10:30] in report.content


@pytest.mark.parametrize("said", [AN_OFFENCE, NOT_HIS], ids=["the account", "every sender"])
async def test_a_refusal_of_everybody_returns_nothing_however_long_it_lasts(
    tmp_path: Path, said: str
) -> None:
    async with Smarthost(Script(mail=said)) as host, Relay(of_one(tmp_path, host, 1800)) as relay:
        for number in range(10):
            relay.accept(sender=f"s{number}@here.example")
        await pass_time(2 * 24 * HOUR_S)
        assert len(relay.sender.queue) == 10

        host.script = Script()
        await relay.until_empty()
        assert len(host.relayed) == 10
