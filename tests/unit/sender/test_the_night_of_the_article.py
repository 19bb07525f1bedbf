"""The night of the article: 500 subscribers through an ISP of 100 an hour that says 550 to whoever exceeds.

The real practice smarthost, a real spool and history; the hours are virtual.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.policy.limits import LimitSettings
from relay.policy.model import Policy
from relay.policy.units import HostPort
from relay.practice.smarthost import PracticeAccount, PracticeSmarthost, Practised
from relay.smtp.sasl import Credentials
from tests.fakes.virtual_time import pass_time
from tests.unit.sender.in_process_relay import Relay, hurry, policy_of, virtual_clock

HOUR_NS = 3600 * SECOND_NS
SUBSCRIBERS = [f"r{number}@list{number % 7}.example" for number in range(500)]
USER, PASSWORD = "mjd", "correct horse"


def _allows(recipients: int) -> LimitSettings:
    return LimitSettings.model_validate({"recipients": recipients, "per": "1h"})


def _policy(folder: Path, isp: PracticeSmarthost, recipients_an_hour: int) -> Policy:
    secret = folder / "password"
    secret.touch(0o600)
    secret.write_text(PASSWORD)
    auth = f", auth: {{user: {USER!r}, password_file: {secret}}}"
    return policy_of(folder, isp.port, f"{auth}, limits: [{{recipients: {recipients_an_hour}, per: 1h}}]")


@asynccontextmanager
async def _night(folder: Path, *, many: bool = False) -> AsyncIterator[tuple[Relay, PracticeSmarthost]]:
    """Have the list's message under way: one for all, or one for each.  In the end everybody got it, once."""
    clock = virtual_clock()
    taken: list[Practised] = []
    account, address = PracticeAccount(_allows(100), HOUR_NS), HostPort("127.0.0.1", 0)
    isp = PracticeSmarthost(address, Credentials(USER, PASSWORD), account, clock, observer=taken.append)
    await isp.start()
    async with Relay(_policy(folder, isp, 100)) as relay:
        for recipients in [[each] for each in SUBSCRIBERS] if many else [SUBSCRIBERS]:
            relay.accept(*recipients, sender="list-bounces@here.example")
        await relay.until(lambda: isp.account.most == 100 and relay.account.in_flight == 0)
        hurry(30)
        yield relay, isp
        await relay.until_empty()
        relayed = [each for each in taken if each.reply.startswith("250")]
        # A report to the list would have come through here too.
        assert {each.reverse_path for each in relayed} == {"list-bounces@here.example"}
        assert sorted(r for each in relayed for r in each.recipients) == sorted(SUBSCRIBERS)
        totals = relay.sender.totals
        assert (totals.bounced, totals.expired) == (0, 0)
    await isp.close()


def _told(relay: Relay) -> str:
    relay.events.flush()
    return relay.log.getvalue()


@pytest.mark.parametrize("many", [False, True], ids=["one message", "500 messages"])
async def test_500_subscribers_get_it_in_five_hours_and_the_isp_sees_nothing_odd(
    tmp_path: Path, many: bool
) -> None:
    began_ns = virtual_clock().boottime_ns()
    async with _night(tmp_path, many=many) as (relay, isp):
        await relay.until_empty()
        assert isp.account.most == 100
        assert isp.account.cut_offs == 0
        assert virtual_clock().boottime_ns() - began_ns < 4.3 * HOUR_NS


async def test_when_a_phone_on_the_same_account_exceeds_the_limit_the_list_waits(
    tmp_path: Path,
) -> None:
    async with _night(tmp_path) as (relay, isp):
        await pass_time(1800)
        # The relay cannot know of it: it does not go through the relay.
        now_ns = virtual_clock().boottime_ns()
        assert not isp.account.admit(1, now_ns)
        await relay.until_empty()

        assert isp.account.cut_offs == 1
        assert "upstream isp paused until" in _told(relay)
        assert "exceeded your sending limit" in _told(relay)
