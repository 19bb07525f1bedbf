"""Who is told that mail is late: once, over restarts too."""

import email
import email.policy
import errno
from pathlib import Path

from flufl.bounce import all_failures, scan_message

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.smarthost import Script, Smarthost
from tests.fakes.smarthost_dialogue import Recorded
from tests.fakes.unsynced import Unsynced
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of, virtual_clock

HOUR_NS = 3600 * SECOND_NS
RETRY = "retry: {min: 3h, max: 6h, lifetime: 5d, warn_after: 4h}"


def limited(folder: Path, port: int, limits: str = "{messages: 1, per: 24h}", rest: str = RETRY) -> Policy:
    return policy_of(folder, port, f", limits: [{limits}], shield: null", rest)


def warnings(relay: Relay) -> int:
    relay.events.flush()
    return relay.log.getvalue().count("sender delay notification")


async def full_window(relay: Relay, host: Smarthost) -> None:
    """Use up the window, and put one message behind it."""
    relay.accept("first@there.example")
    # Its slot opens a window after its end, which must not come after a leap of the clock.
    await relay.until(lambda: host.relayed and relay.account.in_flight == 0)
    relay.accept("second@there.example", "third@there.example")
    await relay.until(lambda: any("limit" in queued.reason for queued in relay.sender.queue))


def fields(report: Recorded) -> list[dict[str, str]]:
    """Read a report with the standard library's parser: the fields of the message, then of each recipient."""
    found = email.message_from_bytes(report.content, policy=email.policy.default)
    assert found.get_content_type() == "multipart/report"
    (status,) = (part for part in found.walk() if part.get_content_type() == "message/delivery-status")
    blocks = [block for block in status.walk() if block is not status]
    return [{name: " ".join(str(value).split()) for name, value in block.items()} for block in blocks]


async def test_what_waits_for_a_window_is_told_of_once_it_is_late(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script()) as host, Relay(limited(tmp_path, host.port)) as relay:
        await full_window(relay, host)
        assert await relay.late.look() == 0
        clock.advance(4 * HOUR_NS - 60 * SECOND_NS)
        assert await relay.late.look() == 0, "it is not late yet"
        clock.advance(61 * SECOND_NS)
        assert await relay.late.look() == 1
        assert await relay.late.look() == 0, "once"
        assert warnings(relay) == 1

        await relay.sender.apply(policy_of(tmp_path, host.port, rest=RETRY))
        await relay.until_empty()
        (warning,) = (relayed for relayed in host.relayed if relayed.reverse_path == "")
        of_message, *of_recipients = fields(warning)
        assert of_message["Reporting-MTA"] == "dns; relay.test"
        assert [each["Final-Recipient"] for each in of_recipients] == [
            "rfc822; second@there.example",
            "rfc822; third@there.example",
        ]
        for each in of_recipients:
            assert (each["Action"], each["Status"]) == ("delayed", "4.4.5")
            assert each["Diagnostic-Code"].startswith("X-relay; it waits for its turn")
            assert "Last-Attempt-Date" not in each, "there was none"
            assert "Will-Retry-Until" in each
        # Mailman's detector must not unsubscribe anybody for it.
        found = email.message_from_bytes(warning.content)
        assert all_failures(found)[1] == set()
        assert scan_message(found) == set()


class Unreadable(Unsynced):
    """A disk that has no descriptor for one file."""

    name = "none"

    def open_update(self, path: str) -> int:
        if path.endswith(self.name):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open_update(path)

    def open_read(self, path: str) -> int:
        if path.endswith(self.name):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open_read(path)


async def test_what_cannot_be_read_now_takes_no_other_message_its_warning(tmp_path: Path) -> None:
    clock, disk = virtual_clock(), Unreadable()
    one_an_hour = RETRY + "\nreports: {per_hour: 1}"
    policy = policy_of(tmp_path, 9, ", shield: null", one_an_hour)
    async with Relay(policy, disk) as relay:
        await relay.operator.pause("isp", PauseAsked("anna"))
        # Long content is not kept in memory.
        first = relay.accept("first@there.example", content=CONTENT + b"a line of many\r\n" * 40_000)
        await relay.until(lambda: len(relay.sender.queue) == 1)
        disk.name = first
        relay.accept("second@there.example")
        await relay.until(lambda: len(relay.sender.queue) == 2)
        clock.advance(5 * HOUR_NS)

        assert await relay.late.look() == 1


def part_due_ns(relay: Relay, queue_id: QueueId) -> int:
    part = relay.queued(queue_id)
    return 0 if part is None else part.due_at_ns


async def test_of_what_was_refused_the_last_reply_of_each_recipient_is_told(tmp_path: Path) -> None:
    clock = virtual_clock()

    def rcpt(argument: str) -> str:
        return "250 ok" if "@here" in argument else f"450 4.2.{1 + argument.count('full')} come again"

    async with (
        Smarthost(Script(rcpt=rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, rest=RETRY)) as relay,
    ):
        queue_id = relay.accept("slow@there.example", "full@there.example")
        arrived_ns = clock.boottime_ns()
        await relay.until(lambda: part_due_ns(relay, queue_id))
        clock.advance(3 * HOUR_NS)
        relay.account.wake()
        await relay.until(lambda: part_due_ns(relay, queue_id) > arrived_ns + 4 * HOUR_NS)
        assert await relay.late.look() == 0
        clock.advance(1 * HOUR_NS)
        assert await relay.late.look() == 1
        await relay.until(lambda: host.relayed)
        (warning,) = host.relayed
    assert [each["Status"] for each in fields(warning)[1:]] == ["4.2.1", "4.2.2"]
