"""The flow from spool to upstream, with every part real but the smarthost, which plays its script."""

import asyncio
import json
import re
import threading
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.operations import ABSENT, OK, UNREAD, NotDone
from relay.mail.envelope import QueueId
from relay.policy.database import HistorySettings
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.sender import arrivals
from relay.telemetry.metric_table import Totals
from relay.verdicts.account import PauseAsked
from tests.fakes.smarthost import CLOSE, Script, Smarthost, Turn, Until, turns
from tests.fakes.unsynced import BeforeSync, Unsynced
from tests.unit.sender.in_process_relay import CONTENT, PATIENCE_SECONDS, Relay, policy_of, virtual_clock


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


LIMIT = ", limits: [{messages: 100, per: 1h}]"
LONG_CONTENT = CONTENT + b"a line of many\r\n" * 40_000


def policy_through(folder: Path, name: str, port: int) -> Policy:
    """Return a policy whose only upstream has this name."""
    text = f"""
spool: ./spool
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams: {{{name}: {{host: 127.0.0.1, port: {port}, tls: none, limits: []}}}}
"""
    return parse_policy(text.encode(), folder / "policy.yaml")


class SuspendedClock:
    """The clocks of a host that is suspended: boottime goes on, the timers of the loop do not."""

    def __init__(self) -> None:
        self._clock = virtual_clock()
        self.slept_ns = 0

    def boottime_ns(self) -> int:
        return self._clock.boottime_ns() + self.slept_ns

    def wall_ns(self) -> int:
        return self._clock.wall_ns() + self.slept_ns

    def boot_id(self) -> str:
        return self._clock.boot_id()


async def turns_of_the_loop(count: int = 50) -> None:
    """Give everything that is ready to run its turn, threads included."""
    for _ in range(count):
        await asyncio.to_thread(lambda: None)


async def test_an_account_that_left_the_policy_and_came_back_keeps_its_operators_pause(
    tmp_path: Path,
) -> None:
    held = asyncio.Event()
    async with Smarthost(Script(mail=[Until(held), "535 5.7.8 account suspended"])) as host:
        policy = policy_through(tmp_path, "isp", host.port)
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until(lambda: any(command.startswith("MAIL") for command in host.commands))
            former = relay.account
            await relay.sender.apply(policy_through(tmp_path, "other", host.port))
            await relay.sender.apply(policy)
            assert await relay.operator.pause("isp", PauseAsked("anna")) == OK
            held.set()
            await relay.until(lambda: former.pausing.state.is_refused)
            await turns_of_the_loop()
        async with Relay(policy) as relay:
            assert relay.account.pausing.state.operator is not None


async def test_what_an_account_learns_after_it_left_the_policy_is_known_when_it_comes_back(
    tmp_path: Path,
) -> None:
    held = asyncio.Event()
    async with Smarthost(Script(mail=[Until(held), "535 5.7.8 account suspended"])) as host:
        policy = policy_through(tmp_path, "isp", host.port)
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until(lambda: any(command.startswith("MAIL") for command in host.commands))
            former = relay.account
            # The other account is at the same host, and has a history of its own.
            other = policy_through(tmp_path, "other", host.port)
            history = HistorySettings(path=tmp_path / "apart")
            apart = other.upstreams["other"].model_copy(update={"history": history})
            await relay.sender.apply(other.model_copy(update={"upstreams": {"other": apart}}))
            held.set()
            await relay.until(lambda: former.pausing.state.is_refused)
            await turns_of_the_loop()
        async with Relay(policy) as relay:
            # A start tries each account that was refused, carefully.
            assert relay.account.pausing.state.is_proving


async def test_no_final_dot_is_sent_after_a_suspend_past_the_deadline(tmp_path: Path) -> None:
    clock = SuspendedClock()

    def data(_: str) -> Turn:
        clock.slept_ns = 7200 * SECOND_NS
        return "354 go ahead"

    async with (
        Smarthost(Script(data=data)) as host,
        Relay(policy_of(tmp_path, host.port, LIMIT), clock=clock) as relay,
    ):
        relay.accept(content=LONG_CONTENT)
        await relay.until_empty()

        assert [r.content for r in host.transactions] == [LONG_CONTENT]
        assert len([command for command in host.commands if command.startswith("MAIL")]) == 2
        assert relay.sender.totals == Totals(accepted=1, relayed=1)


async def test_no_mail_is_sent_after_a_suspend_past_the_deadline(tmp_path: Path) -> None:
    clock = SuspendedClock()

    def sleep(path: str) -> None:
        if "/history/" in path:
            clock.slept_ns = 7200 * SECOND_NS

    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port, LIMIT)
        async with Relay(policy) as relay:  # creates the history
            relay.accept()
            await relay.until_empty()
        async with Relay(policy, BeforeSync(sleep), clock) as relay:
            relay.accept()
            await relay.until(lambda: len(host.relayed) == 2)

        assert len([command for command in host.commands if command.startswith("MAIL")]) == 2


QUEUED = 6
BATCH = 2


class SlowDisk(Unsynced):
    """A disk on which no queued file behind the first batch can be opened before `let_go`."""

    def __init__(self) -> None:
        super().__init__()
        self._left = BATCH
        self._gate = threading.Event()

    def open_update(self, path: str) -> int:
        if "/cur/" in path:
            self._left -= 1
            assert self._left >= 0 or self._gate.wait(PATIENCE_SECONDS)
        return super().open_update(path)

    def let_go(self) -> None:
        self._gate.set()


@pytest.fixture
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "CLAIMED_AT_ONCE", BATCH)


async def _with_queue(policy: Policy) -> list[QueueId]:
    """Queue messages, and end; return their ids, the oldest first."""
    relay = Relay(policy)
    ids = [relay.accept(f"b{number}@there.example") for number in range(QUEUED)]
    await relay.sender.read()
    await relay.sender.stop()
    relay.trigger.close()
    return ids


@pytest.mark.usefixtures("_small_batches")
async def test_the_first_goes_before_the_last_is_read(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        await _with_queue(policy)
        disk = SlowDisk()
        async with Relay(policy, disk, is_threaded=True) as relay:
            await host.until(lambda: len(host.transactions) == BATCH)
            assert relay.sender.is_reading
            disk.let_go()
            await relay.until_empty()
        recipients = [sent.recipients for sent in host.transactions]
    assert sorted(recipients[:BATCH]) == [[f"b{number}@there.example"] for number in range(BATCH)]
    assert sorted(recipients) == [[f"b{number}@there.example"] for number in range(QUEUED)]


@pytest.mark.usefixtures("_small_batches")
async def test_what_is_not_read_yet_is_not_said_to_be_absent(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 9)
    ids = await _with_queue(policy)
    disk = SlowDisk()
    async with Relay(policy, disk, is_threaded=True) as relay:
        assert relay.watch.snapshot().recovering >= QUEUED - 2 * BATCH
        with pytest.raises(NotDone, match=UNREAD):
            await relay.operator.show(ids[-1])
        assert await relay.operator.act("delete", ids[-1:]) == {ids[-1]: UNREAD}
        with pytest.raises(NotDone, match="still reads its queue"):
            await relay.operator.plan("", tmp_path / "policy.yaml")
        disk.let_go()
        await relay.until(lambda: not relay.sender.is_reading)
        assert relay.watch.snapshot().recovering == 0
        assert await relay.operator.act("hold", ids[-1:]) == {ids[-1]: OK}
        with pytest.raises(NotDone, match=ABSENT):
            await relay.operator.show(QueueId("0" * 16))


EACH = 3
"""So many messages the upstream takes in a session."""
ENOUGH: dict[str, Turn] = {
    "421": ["421 4.7.0 Too many messages in this session", CLOSE],
    "452": "452 4.3.2 Enough of this session",
}


def _refusing(host: Smarthost, enough: Turn, each: int) -> Script:
    def mail(_: str) -> Turn:
        sent = sum(command.startswith("MAIL") for command in host.sessions[-1].commands)
        return enough if sent > each else "250 ok"

    return Script(mail=mail)


@pytest.mark.parametrize("extensions", [None, ()], ids=["pipelined", "plain"])
@pytest.mark.parametrize("enough", list(ENOUGH.values()), ids=list(ENOUGH))
async def test_a_full_session_ends_and_the_next_goes_on_at_once(
    tmp_path: Path, enough: Turn, extensions: tuple[str, ...] | None
) -> None:
    async with Smarthost(extensions=extensions) as host:
        host.script = _refusing(host, enough, EACH)
        limit = ", limits: [{messages: 100, per: 1h}]"
        async with Relay(policy_of(tmp_path, host.port, limit, connections=1)) as relay:
            for number in range(10):
                relay.accept(f"r{number}@there.example")
            await relay.until_empty()
            relay.events.flush()
            log = relay.log.getvalue()
            used = relay.account.throttle.view.usage()[0].used

        assert "paused" not in log
        assert "deferred" not in log
        # Who came first goes first, also behind the refusal.
        assert [relayed.recipients[0] for relayed in host.relayed] == [
            f"r{number}@there.example" for number in range(10)
        ]
        # One slot shows how many a session takes; the sessions behind it end before they are refused.
        assert used == 11
        assert len(host.sessions) == 4


@pytest.mark.parametrize(
    ("refusal", "each"),
    [
        ("421 4.7.0 Too many messages", 0),
        ("421 4.7.0 You have sent too many messages, try again in 2 hours", EACH),
        ("452 4.4.5 Daily message limit exceeded", EACH),
    ],
    ids=["first of its session", "asks for time", "names a window"],
)
async def test_a_refusal_of_us_is_no_full_session(tmp_path: Path, refusal: str, each: int) -> None:
    async with Smarthost() as host:
        host.script = _refusing(host, refusal, each)
        async with Relay(policy_of(tmp_path, host.port, connections=1)) as relay:
            for number in range(10):
                relay.accept(f"r{number}@there.example")
            await relay.until(lambda: relay.account.pausing.state.why)
            assert len(host.relayed) == each
            assert len(host.sessions) == 1


GBK = "用户不存在".encode("gbk")
ODD = {
    "a greeting of many lines": Script(connect=b"220-fake.example\r\n220-no spam\r\n220 ready\r\n"),
    "a greeting without a text": Script(connect=b"220\r\n"),
    "a greeting in GBK": Script(connect=b"220 " + GBK + b"\r\n"),
    "EHLO of the name alone": Script(ehlo=b"250 fake.example\r\n"),
    "EHLO without a text": Script(ehlo=b"250\r\n"),
    "EHLO of 200 words": Script(
        ehlo=b"".join(b"250-X%d a=b =\r\n" % n for n in range(200)) + b"250 8BITMIME\r\n"
    ),
    "EHLO with words that are none": Script(
        ehlo=b"250-fake.example\r\n250-\r\n250-AUTH\r\n250-AUTH=\r\n250-SIZE\r\n250-SIZE=1\r\n250-SIZE 0\r\n"
        b"250-LIMITS\r\n250-250 DSN\r\n250-" + GBK + b"\r\n250 8bitmime\r\n"
    ),
    "codes alone": Script(mail=b"250\r\n", rcpt=b"250\r\n", data=b"354\r\n", eod=b"250\r\n"),
    "codes and a blank": Script(mail=b"250 \r\n", rcpt=b"250 \r\n", data=b"354 \r\n", eod=b"250 \r\n"),
    "recipients taken by 251 and 252": Script(rcpt=turns("251 will forward", "252 will try")),
    "354 of many lines": Script(data=b"354-2.0.0 go\r\n354-on\r\n354 .\r\n"),
    "250 of many lines": Script(eod=b"250-2.0.0 ok\r\n250-id=1\r\n250 " + GBK + b"\r\n"),
    "250 that speaks of a refusal": Script(eod="250 5.7.1 rejected: 550 quota exceeded"),
    "RSET not known": Script(rcpt=turns("450 4.2.1 later", "450 4.2.1 later"), rset="502 5.5.1 what?"),
    "a wrong 221": Script(quit="500 5.5.1 what?"),
    "closed behind the last 250": Script(eod=["250 2.0.0 ok", CLOSE]),
    "421 behind the last 250": Script(eod=["250 2.0.0 ok", "421 4.4.2 idle", CLOSE]),
    "552 where 452 is meant": Script(rcpt=turns("250 ok", "552 5.5.3 Maximum limit of 1 recipients reached")),
}


@pytest.mark.parametrize("script", list(ODD.values()), ids=list(ODD))
async def test_odd_replies_relay_once_byte_for_byte(tmp_path: Path, script: Script) -> None:
    wanted = {"b@there.example", "c@there.example"}
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port, ", idle: 50ms")) as relay:
        relay.accept(*wanted)
        relay.accept(*wanted)
        await relay.until_empty()

        assert sorted(each for relayed in host.relayed for each in relayed.recipients) == sorted(
            [*wanted] * 2
        )
        assert {relayed.content for relayed in host.relayed} == {CONTENT}
        assert {relayed.reverse_path for relayed in host.relayed} == {"a@here.example"}
        totals = relay.sender.totals
        assert (totals.relayed, totals.bounced) == (4, 0)
        relay.events.flush()
        assert "paused" not in relay.log.getvalue()
