"""What senders ask to be told (RFC 3461): passed on where the upstream offers DSN, else told by us."""

import email
import email.policy
from pathlib import Path

import pytest
from flufl.bounce import all_failures, scan_message

from relay.mail.dsn import DsnRequest, Notify, RecipientRequest, Ret
from tests.fakes.smarthost import Script, Smarthost
from tests.fakes.smarthost_dialogue import Recorded
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of
from tests.unit.sender.test_late_mail import fields
from tests.unit.sender.test_reports import (
    SHIELD_OFF,
    nobody,
    reports,
)

DSN = (*Smarthost.EXTENSIONS, "DSN")
GONE, HERE, SLOW = "gone@there.example", "here@there.example", "slow@there.example"


def asked(*notify: Notify | None, ret: Ret | None = None, envid: str = "") -> DsnRequest:
    return DsnRequest(ret, envid, tuple(map(RecipientRequest, notify)))


def actions(report: Recorded) -> list[tuple[str, str]]:
    return [(each["Final-Recipient"].partition("; ")[2], each["Action"]) for each in fields(report)[1:]]


def unsubscribed(report: Recorded) -> set[bytes]:
    """Return whom Mailman's detector takes for gone."""
    found = email.message_from_bytes(report.content, policy=email.policy.compat32)
    _, permanent = all_failures(found)
    assert set(scan_message(found)) == set(permanent)
    return set(permanent)


async def test_failures_and_successes_are_told_together(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=nobody)) as host,
        Relay(policy_of(tmp_path, host.port, SHIELD_OFF)) as relay,
    ):
        relay.accept(HERE, GONE, dsn=asked(Notify.SUCCESS, None))
        await relay.until_empty()

        (report,) = reports(host)
        assert actions(report) == [(HERE, "relayed"), (GONE, "failed")]
        assert unsubscribed(report) == {GONE.encode()}


LONG_LINE = CONTENT + b"x" * 2000 + b"\r\n"
EIGHT_BIT = CONTENT + "ü\r\n".encode()


@pytest.mark.parametrize("content", [LONG_LINE, EIGHT_BIT], ids=["long line", "8-bit"])
async def test_a_returned_message_is_found_by_a_parser(tmp_path: Path, content: bytes) -> None:
    async with (
        Smarthost(Script(rcpt=nobody)) as host,
        Relay(policy_of(tmp_path, host.port, SHIELD_OFF)) as relay,
    ):
        relay.accept(GONE, content=content, dsn=asked(None, ret=Ret.FULL))
        await relay.until_empty()

    (report,) = reports(host)
    *_, part = email.message_from_bytes(report.content, policy=email.policy.SMTP).iter_parts()
    if content.isascii():
        assert part.get_content_type() == "message/rfc822"
        assert report.content.count(b"\r\n\r\n" + content) == 1
        (original,) = part.iter_parts()
        assert original["Subject"] == "hello"
    else:
        assert part.get_content_type() == "text/rfc822-headers"


async def test_a_false_offer_of_dsn_costs_a_slot_and_bounces_nobody(tmp_path: Path) -> None:
    def refuses(argument: str) -> str:
        return "555 5.5.4 unsupported option" if "NOTIFY" in argument else nobody(argument)

    async with (
        Smarthost(Script(rcpt=refuses), extensions=DSN) as host,
        Relay(policy_of(tmp_path, host.port, SHIELD_OFF, connections=1)) as relay,
    ):
        relay.accept(HERE, GONE, dsn=asked(Notify.SUCCESS, Notify.FAILURE))
        await relay.until_empty()
        (report,) = reports(host)
        assert actions(report) == [(HERE, "relayed"), (GONE, "failed")]
        assert sum("NOTIFY" in command for command in host.commands) <= 2

        relay.accept(HERE, dsn=asked(Notify.SUCCESS))
        await relay.until_empty()
        assert len(reports(host)) == 2
        assert sum("NOTIFY" in command for command in host.commands) <= 2
