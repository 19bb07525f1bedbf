"""What the relay does by a verdict or an operator's word: pause, stop, go on when somebody acted."""

import asyncio
import io
import itertools
import json
import threading
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.queue.queued import State
from relay.sender.pausing import Pausing
from relay.sender.state_file import AccountFile, parse, pause_path
from relay.smtp.reply import Phase, Reply
from relay.spool.disk.durable import RealDisk
from relay.status.snapshot import UpstreamState
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics, Telemetry
from relay.verdicts.account import FOREVER_NS, Happening, OperatorPause, PauseAsked
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import CLOSE, DEFAULT, GAP, Script, Smarthost, Step, Turn, Until, turns
from tests.fakes.unsynced import BeforeSync
from tests.fakes.virtual_time import pass_time
from tests.unit.sender.in_process_relay import Relay, hurry, policy_of, virtual_clock
from tests.unit.sender.test_sender import turns_of_the_loop


class World:
    def __init__(self, path: Path) -> None:
        self.clock, self.log = FakeClock(), io.StringIO()
        self.kept = AccountFile(path, RealDisk())
        events = Events(self.log, "json", self.clock)
        self.events = events
        self.pausing = Pausing(
            "isp",
            Telemetry(events, Metrics(self.clock), self.clock),
            self.kept,
            leaves_in_ns=lambda _span_ns: None,
            on_refused=lambda _answer: None,
            on_change=lambda _availability: None,
        )

    def do(self, word: str) -> None:
        pausing = self.pausing
        match word:
            case "pause" | "stop":
                code = 421 if word == "pause" else 535
                pausing.rest(Answer(Verdict(word), Phase.MAIL, Reply(code, None, "no"), f"{code} no"))
            case "proof":
                pausing.observe(
                    Outcome((Answer(Verdict.RELAYED, Phase.EOD, Reply(250, None, "ok"), "250 ok"),))
                )
            case "later":
                self.clock.advance(7200 * SECOND_NS)
                pausing.until_ns(self.clock.boottime_ns())
            case "word":
                pausing.apply(Happening.KEEP, pause=OperatorPause(FOREVER_NS, "anna", 0))
            case "resume":
                pausing.end()
            case "edit":
                pausing.end(Happening.EDIT)
            case "fault":
                until_ns = self.clock.boottime_ns() + 60 * SECOND_NS
                pausing.apply(Happening.FAULT, text="damaged", until_ns=until_ns)
            case "sound":
                pausing.trust_history()

    def told(self) -> list[str]:
        self.events.flush()
        text = self.log.getvalue()
        self.log.seek(0)
        self.log.truncate()
        return [json.loads(line)["event"].removeprefix("upstream_") for line in text.splitlines()]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("pause later proof", [["paused"], ["proving"], ["resumed"]]),
        ("pause later pause", [["paused"], ["proving"], ["paused"]]),
        ("stop pause stop", [["stopped"], [], []]),
        ("stop proof resume proof", [["stopped"], [], ["proving"], ["resumed"]]),
        ("word resume", [["operator_paused"], ["operator_pause_ended", "proving"]]),
        ("word pause edit resume", [["operator_paused"], ["paused"], ["proving"], ["operator_pause_ended"]]),
        ("fault fault sound proof", [["stopped"], [], ["proving"], ["resumed"]]),
        ("pause later fault sound", [["paused"], ["proving"], ["stopped"], ["proving"]]),
        ("pause fault later sound", [["paused"], [], [], ["proving"]]),
        ("proof edit later", [[], [], []]),
    ],
)
async def test_a_change_is_told_and_nothing_else(tmp_path: Path, words: str, told: list[list[str]]) -> None:
    world, each = World(tmp_path / "pause"), []
    for word in words.split():
        world.do(word)
        each.append(world.told())

    assert each == told
    # What a start would go on with is what there is.
    assert await world.kept.written() == ""
    record = world.kept.load()
    assert (record is not None) == any(told)
    assert record is None or record.state == world.pausing.state


DAY_NS = 86400 * SECOND_NS
LASTING = PauseAsked("anna")


async def kept_back(relay: Relay) -> None:
    """Let the relay do whatever it would do now."""
    await relay.until(lambda: relay.account.in_flight == 0)
    for _ in range(3):
        relay.account.wake()
        await turns_of_the_loop()
    assert relay.account.in_flight == 0


async def test_it_outlives_a_restart_and_says_who_paused_and_when(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            assert await relay.operator.pause("isp", LASTING) == OK
            pause = relay.account.pausing.state.operator
            assert parse(pause_path(policy, "isp").read_bytes()).state.operator == pause
        async with Relay(policy) as relay:
            queue_id = relay.accept("b@there.example")
            await relay.until(lambda: relay.queued(queue_id))
            await kept_back(relay)

            assert relay.account.pausing.state.operator == pause
            (shown,) = (await relay.operator.snapshot()).upstreams
            assert (shown.state, shown.paused_by) == (UpstreamState.PAUSED, "anna")
            assert shown.paused_until_ns is shown.drained_at_ns is None
            assert shown.held_by == f"operator: {shown.paused_because.removeprefix('by ')}"
            (listed,) = await relay.listed()
            assert (listed.held_by, listed.eta_at_ns) == (shown.held_by, None)
            assert listed.reason == f"isp is paused: {shown.paused_because}"
            assert host.relayed == []
            assert await relay.operator.resume("isp") == OK
            await relay.until_empty()


async def test_an_edit_of_the_account_carries_the_pause_over(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        await relay.operator.pause("isp", LASTING)
        before = relay.account
        pause = before.pausing.state.operator
        await relay.sender.apply(policy_of(tmp_path, host.port, ", history: other"))

        assert relay.account is not before
        assert relay.account.pausing.state.operator == pause
        assert await relay.sender.upstreams.recorded("isp") == ""
        edited = policy_of(
            tmp_path, host.port, ", history: other, verdicts: [{text: x, verdict: defer recipient}]"
        )
        await relay.sender.apply(edited)
        assert relay.account.pausing.state.operator == pause


async def test_a_pause_that_is_not_on_disk_is_said_to_be_so(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            path = pause_path(policy, "isp")
            path.mkdir(parents=True)
            told = await relay.operator.pause("isp", LASTING)
            assert told.startswith("paused, but not on disk, so a restart would end it: ")
            assert relay.account.pausing.state.operator is not None
            told = await relay.operator.resume("isp")
            assert told.startswith("used again, but not on disk, so a restart may rest again: ")
            path.rmdir()
            assert await relay.operator.pause("isp", LASTING) == OK


REFUSED = "421 4.7.0 too much from you, come back later"


async def _paused(relay: Relay) -> None:
    """Wait until the upstream rests and everything that was in flight is back in the queue."""
    await relay.until(lambda: relay.account.pausing.state.why and relay.account.in_flight == 0)


def _over(relay: Relay) -> None:
    relay.account.pausing.end()
    relay.account.wake()


def mails(host: Smarthost) -> int:
    """Return how many transactions were begun."""
    return sum(command.startswith("MAIL") for command in host.commands)


async def test_a_step_of_the_clock_is_told_and_counted_once(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept()
        await relay.until_empty()
        virtual_clock().step_wall(-365 * DAY_NS)

        def is_told() -> bool:
            relay.events.flush()
            return "the clock of this host was set by -31536000" in relay.log.getvalue()

        await relay.until(is_told)
        relay.accept()
        await relay.until_empty()

        assert len(host.relayed) == 2
        assert relay.log.getvalue().count("the clock of this host was set") == 1


@pytest.mark.parametrize("after", ["the process", "the host"])
async def test_a_restart_goes_on_with_the_pause_and_does_not_knock(tmp_path: Path, after: str) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(mail=turns(REFUSED))) as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            queue_id = relay.accept()
            await _paused(relay)
            left_ns = relay.account.pausing.state.until_ns - clock.boottime_ns()
        before = len(host.sessions)
        if after == "the host":
            clock.reboot()
        async with Relay(policy) as relay:
            await relay.until(lambda: relay.account.pausing.state.why)
            queued = relay.queued(queue_id)
            assert queued is not None
            assert queued.state is State.WAITING
            assert "too much from you" in relay.account.pausing.state.why
            assert 0 < relay.account.pausing.state.until_ns - clock.boottime_ns() <= left_ns
            assert len(host.sessions) == before

            _over(relay)
            await relay.until_empty()
        assert len(host.relayed) == 1


def with_password(folder: Path, password: str) -> str:
    # In one step: the relay looks at it each second, and half a password is another one.
    secret = folder / "password"
    new = folder / "password.new"
    new.write_text(password)
    new.chmod(0o600)
    new.replace(secret)
    return f", auth: {{user: mjd, password_file: {secret}}}"


async def test_refused_credentials_stop_until_the_password_is_another(tmp_path: Path) -> None:
    async with (
        Smarthost(accounts={"mjd": "right"}) as host,
        Relay(policy_of(tmp_path, host.port, with_password(tmp_path, "wrong"))) as relay,
    ):
        queue_id = relay.accept()
        await relay.until(lambda: relay.account.pausing.state.why)

        assert relay.watch.snapshot().upstreams[0].state is UpstreamState.STOPPED
        queued = relay.queued(queue_id)
        assert queued is not None
        assert queued.state is State.WAITING

        with_password(tmp_path, "right")
        await relay.until_empty()
        assert len([command for command in host.commands if command.startswith("AUTH")]) == 2
    log = relay.log.getvalue()
    assert "error: upstream isp stopped: 535" in log
    assert "upstream isp resumed" in log


async def test_an_edit_of_verdicts_judges_anew_and_ends_a_stop(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt="554 5.7.1 Relay access denied")) as host,
        Relay(policy_of(tmp_path, host.port)) as relay,
    ):
        relay.accept()
        await relay.until(lambda: relay.account.pausing.state.is_refused)

        rule = '{phase: rcpt, text: "relay access denied", verdict: bounce recipient}'
        await relay.sender.apply(policy_of(tmp_path, host.port, f", verdicts: [{rule}]"))
        await relay.until_empty()

        assert relay.sender.totals.bounced == 2  # the message, and the report of it


@pytest.mark.parametrize(
    ("said", "gaps_s"),
    [
        ("421 4.3.2 busy", [15, 30, 60, 120]),
        ("450 4.7.1 rate limit exceeded, try again in 2 hours", [7200, 7200]),
        ("552 Your account has been suspended. Please contact us to reactivate", [3600, 3600, 3600]),
    ],
)
async def test_an_upstream_that_refuses_us_is_asked_again_in_its_time_by_one_message(
    tmp_path: Path, said: str, gaps_s: list[int]
) -> None:
    asked_ns: list[int] = []

    def mail(_: str) -> Turn:
        asked_ns.append(virtual_clock().boottime_ns())
        return said

    async with Smarthost(Script(mail=mail)) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept(sender="")
        await relay.until(lambda: asked_ns and relay.account.in_flight == 0)
        hurry(step_s := max(1, gaps_s[0] // 100))
        for number in range(5):
            relay.accept(sender=f"s{number}@here.example")
        await relay.until(lambda: len(asked_ns) > len(gaps_s) and relay.account.in_flight == 0)
        gaps_ns = [later - before for before, later in itertools.pairwise(asked_ns)]
        assert all(
            gap_s * SECOND_NS <= gap_ns <= (gap_s + 2 * step_s) * SECOND_NS
            for gap_s, gap_ns in zip(gaps_s, gaps_ns, strict=True)
        )

        # Somebody acted: it begins anew.
        assert await relay.operator.resume("isp") == OK
        await relay.until(lambda: len(asked_ns) > len(gaps_s) + 2)
        assert asked_ns[-1] - asked_ns[-2] <= (gaps_s[0] + 2 * step_s) * SECOND_NS
        assert len(relay.sender.queue) == 6


async def test_while_an_upstream_proves_itself_one_message_goes_at_a_time(tmp_path: Path) -> None:
    release = asyncio.Event()
    script = Script(mail=turns("421 4.3.2 busy"), eod=turns([Until(release), DEFAULT]))
    async with (
        Smarthost(script) as host,
        Relay(policy_of(tmp_path, host.port, connections=4)) as relay,
    ):
        relay.accept()
        await _paused(relay)
        for _ in range(8):
            relay.accept()
        await relay.until(lambda: mails(host) == 2)
        await pass_time(60)
        assert mails(host) == 2
        release.set()
        await relay.until_empty()
        assert len(host.relayed) == 9


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


@pytest.mark.parametrize("waits", [(), (GAP,)])
@pytest.mark.parametrize(("last", "why"), [("421 4.3.2 busy", "421 4.3.2 busy"), (CLOSE, "closed")])
async def test_an_upstream_that_ends_each_session_before_mail_is_not_asked_without_end(
    tmp_path: Path, waits: tuple[Step, ...], last: Step, why: str
) -> None:
    ending = ["235 2.7.0 ok", *waits, last, CLOSE]
    script = Script(auth=turns(*[ending] * 9))
    async with (
        Smarthost(script, accounts={"mjd": "right"}) as host,
        Relay(policy_of(tmp_path, host.port, with_password(tmp_path, "right"))) as relay,
    ):
        queue_id = relay.accept()
        await host.until(lambda: host.sessions)
        await relay.until(lambda: relay.account.pausing.state.why or host.relayed)

        assert why in relay.account.pausing.state.why
        assert (queued := relay.queued(queue_id)) is not None
        assert "limit" not in queued.why.text
        assert len(host.sessions) == 1

        await relay.until_empty()
        assert len(host.sessions) == 10


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


async def test_nothing_is_begun_behind_a_refusal_though_it_was_about_to_be(tmp_path: Path) -> None:
    is_armed, is_deciding, may_go_on = threading.Event(), threading.Event(), threading.Event()
    refuse = asyncio.Event()

    def wait(path: str) -> None:
        if "/history/" in path and is_armed.is_set():
            is_deciding.set()
            assert may_go_on.wait(20)

    script = Script(mail=turns("250 ok", "250 ok", [Until(refuse), "451 4.7.0 too many messages, slow down"]))
    policy = ", limits: [{messages: 100, per: 1h}]"
    async with Smarthost(script) as host:
        relay = Relay(policy_of(tmp_path, host.port, policy), BeforeSync(wait), is_threaded=True)
        for number in range(2):
            relay.accept(f"{number}@x.example")
        async with relay:
            await relay.until_empty()
            relay.accept("first@x.example")
            await relay.until(lambda: mails(host) == 3)
            is_armed.set()
            second = relay.accept("second@x.example")
            await relay.until(is_deciding.is_set)
            refuse.set()
            await relay.until(lambda: relay.account.pausing.state.why)
            may_go_on.set()
            await relay.until(lambda: not (q := relay.queued(second)) or q.state is not State.ACTIVE)

            assert mails(host) == 3


async def test_a_sender_is_not_asked_for_again_before_the_time_that_is_said(
    tmp_path: Path,
) -> None:
    def mail(argument: str) -> Turn:
        if "told@" in argument:
            return "450 4.7.1 not from told@here.example, try again in 6 hours"
        return "450 4.7.1 not from ruled@here.example" if "ruled@" in argument else "250 ok"

    clock = virtual_clock()
    rules = ", verdicts: [{text: 'not from', verdict: pause sender, wait: 2h}]"
    async with Smarthost(Script(mail=mail)) as host, Relay(policy_of(tmp_path, host.port, rules)) as relay:
        told, ruled = (relay.accept(sender=f"{name}@here.example") for name in ("told", "ruled"))
        sender_pauses = relay.line.sender_pauses
        await relay.until(lambda: len(sender_pauses.senders()) == 2)
        await relay.until(lambda: relay.account.in_flight == 0)
        now_ns = clock.boottime_ns()
        until_ns = sender_pauses.senders()

        assert 5 * HOUR_NS < until_ns["told@here.example"] - now_ns <= 6 * HOUR_NS
        assert HOUR_NS < until_ns["ruled@here.example"] - now_ns <= 2 * HOUR_NS
        assert relay.queued(told) is not None
        assert relay.queued(ruled) is not None
