"""Pauses and stops by a verdict or by the operator, and what ends them."""

import asyncio
import io
import json
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.queue.queued import State
from relay.sender.pausing import AccountFile, Pausing, pause_path
from relay.smtp.reply import Phase, Reply
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics, Telemetry
from relay.throttle.book import Book
from relay.throttle.throttle import View
from relay.verdicts.account import FOREVER_NS, Event, EventKind, OperatorPause, PauseAsked
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import CLOSE, DEFAULT, GAP, Script, Smarthost, Step, Turn, Until, turns
from tests.unit.sender.in_process_relay import Relay, hurry, policy_of, virtual_clock

HOUR_NS = 3600 * SECOND_NS
LASTING = PauseAsked("anna")


class World:
    """The state of an account, kept in a file, and the log of it."""

    def __init__(self, path: Path) -> None:
        self.clock, self.log = FakeClock(), io.StringIO()
        self.store = AccountFile(path, RealDisk(), self.clock)
        self.events = Events(self.log, "json", self.clock)
        self.pausing = Pausing(
            "isp",
            Telemetry(self.events, Metrics(), self.clock),
            self.store,
            view=View(Book(), self.clock),
            on_change=lambda _availability: None,
        )

    def do(self, word: str) -> None:
        pausing, now_ns = self.pausing, self.clock.boottime_ns()
        match word:
            case "pause" | "stop":
                code = 421 if word == "pause" else 535
                pausing.rest(Answer(Verdict(word), Phase.MAIL, Reply(code, None, "no"), f"{code} no"))
            case "proof":
                relayed = Answer(Verdict.RELAYED, Phase.EOD, Reply(250, None, "ok"), "250 ok")
                pausing.observe(Outcome((relayed,)))
            case "later":
                self.clock.advance(2 * HOUR_NS)
                pausing.until_ns(self.clock.boottime_ns())
            case "word":
                pausing.apply(Event(EventKind.KEEP, now_ns, pause=OperatorPause(FOREVER_NS, "anna", 0)))
            case "resume":
                pausing.end()
            case "edit":
                pausing.end(EventKind.EDIT)
            case "fault":
                pausing.apply(Event(EventKind.FAULT, now_ns, "damaged", until_ns=now_ns + 60 * SECOND_NS))
            case "sound":
                pausing.apply(Event(EventKind.SOUND, now_ns))

    def told(self) -> list[str]:
        """Return the names of the events since the last call."""
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
async def test_only_changes_of_state_are_logged(tmp_path: Path, words: str, told: list[list[str]]) -> None:
    world, each = World(tmp_path / "pause"), []
    for word in words.split():
        world.do(word)
        each.append(world.told())

    assert each == told
    # A start would continue with exactly this state.
    assert await world.pausing.recorded() == ""
    saved = world.store.look()
    assert (saved is not None) == any(told)
    assert saved is None or saved == world.pausing.state


async def test_the_operator_is_told_if_a_pause_is_not_on_disk(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 9)
    async with Relay(policy) as relay:
        path = pause_path(policy, "isp")
        path.mkdir(parents=True)
        told = await relay.operator.pause("isp", LASTING)
        assert told.startswith("paused, but the pause was not saved and ends at a restart: ")
        assert relay.account.pausing.state.operator is not None
        told = await relay.operator.resume("isp")
        assert told.startswith("resumed, but this was not saved; a restart may pause it again: ")
        path.rmdir()
        assert await relay.operator.pause("isp", LASTING) == OK


@pytest.mark.parametrize("after", ["the process", "the host"])
async def test_a_restart_continues_the_pause_and_opens_no_connection(tmp_path: Path, after: str) -> None:
    clock, refused = virtual_clock(), "421 4.7.0 too much from you, come back later"
    async with Smarthost(Script(mail=turns(refused))) as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until(lambda: relay.account.pausing.state.why and relay.account.in_flight == 0)
            left_ns = relay.account.pausing.state.until_ns - clock.boottime_ns()
        if after == "the host":
            clock.reboot()
        began_ns = clock.boottime_ns()
        async with Relay(policy) as relay:
            assert "too much from you" in relay.account.pausing.state.why
            assert 0 < relay.account.pausing.state.until_ns - began_ns <= left_ns
            await relay.until(lambda: len(relay.sender.queue))
            assert [queued.state for queued in relay.sender.queue] == [State.WAITING]
            assert len(host.sessions) == 1
            await relay.until_empty()
        assert len(host.relayed) == 1


async def test_an_edit_ends_a_stop_only_if_it_may_have_removed_the_cause(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt="554 5.7.1 Relay access denied")) as host,
        Relay(policy_of(tmp_path, host.port)) as relay,
    ):
        relay.accept()
        await relay.until(lambda: relay.account.pausing.state.is_stopped)
        before = relay.account.pausing.state
        await relay.sender.apply(policy_of(tmp_path, host.port, ", limits: [{messages: 9, per: 1h}]"))
        assert relay.account.pausing.state == before

        rule = '{phase: rcpt, text: "relay access denied", verdict: bounce recipient}'
        await relay.sender.apply(policy_of(tmp_path, host.port, f", verdicts: [{rule}]"))
        await relay.until_empty()
        assert relay.sender.totals["bounced"] == 2  # the message, and the report of it


async def test_a_stop_just_before_its_account_is_replaced_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path / "isp.pause")
    world.do("stop")
    world.pausing.retire()
    assert await world.pausing.recorded() == ""
    kept = world.store.look()
    assert kept is not None
    assert kept.is_stopped


def with_password(folder: Path) -> str:
    secret = folder / "password"
    secret.touch(0o600)
    secret.write_text("right")
    return f", auth: {{user: mjd, password_file: {secret}}}"


@pytest.mark.parametrize(
    ("phase", "refusal", "minutes_later"),
    [
        ("auth", "535 5.7.8 wrong", 0),
        # No login for each new message: the relay waits as the upstream asks, or for a while.
        ("auth", "454 4.7.0 Too many login attempts, please try again in 10 minutes", 5),
        ("connect", "421 4.7.0 too many connections", 0),
    ],
)
async def test_a_refused_second_connection_stops_the_first_only_if_the_account_is_refused(
    tmp_path: Path, phase: str, refusal: str, minutes_later: int
) -> None:
    release = asyncio.Event()
    script = Script(eod=turns([Until(release), DEFAULT]))
    setattr(script, phase, turns(DEFAULT, *[refusal] * 90))
    async with (
        Smarthost(script, accounts={"mjd": "right"}) as host,
        Relay(policy_of(tmp_path, host.port, with_password(tmp_path))) as relay,
    ):
        relay.accept()
        await relay.until(lambda: relay.account.in_flight)
        relay.accept()
        await host.until(lambda: len(host.sessions) == 2 and not host.sessions[1].is_open)
        virtual_clock().advance(minutes_later * 60 * SECOND_NS)
        for _ in range(30):
            relay.accept()
        await relay.until(lambda: len(relay.sender.queue) == 32)
        release.set()
        if refusal.startswith("535"):
            await relay.until(lambda: len(host.relayed) == 1 and relay.account.in_flight == 0)
            assert relay.account.pausing.state.is_stopped
        else:
            await relay.until_empty()
            assert "paused" not in relay.logged()
        assert len(host.sessions) == 2


@pytest.mark.parametrize(
    ("ending", "why"),
    [(["421 4.3.2 busy"], "421 4.3.2 busy"), ([GAP, CLOSE], "closed")],
    ids=["421", "closed a moment later"],
)
async def test_an_upstream_that_ends_each_session_before_mail_is_paused(
    tmp_path: Path, ending: list[Step], why: str
) -> None:
    script = Script(auth=turns(*[["235 2.7.0 ok", *ending, CLOSE]] * 9))
    async with (
        Smarthost(script, accounts={"mjd": "right"}) as host,
        Relay(policy_of(tmp_path, host.port, with_password(tmp_path))) as relay,
    ):
        queue_id = relay.accept()
        await relay.until(lambda: relay.account.pausing.state.why or host.relayed)

        assert why in relay.account.pausing.state.why
        assert (queued := relay.queued(queue_id)) is not None
        assert "limit" not in queued.why.text
        assert len(host.sessions) == 1

        hurry(15)
        await relay.until_empty()
        assert len(host.sessions) == 10


async def test_a_paused_sender_waits_as_long_as_the_reply_or_the_rule_says(tmp_path: Path) -> None:
    def mail(argument: str) -> Turn:
        if "told@" in argument:
            return "450 4.7.1 not from told@here.example, try again in 6 hours"
        return "450 4.7.1 not from ruled@here.example"

    clock = virtual_clock()
    rules = ", verdicts: [{text: 'not from', verdict: pause sender, wait: 2h}]"
    async with Smarthost(Script(mail=mail)) as host, Relay(policy_of(tmp_path, host.port, rules)) as relay:
        relay.accept(sender="told@here.example")
        relay.accept(sender="ruled@here.example")
        sender_pauses = relay.line.sender_pauses
        await relay.until(lambda: len(sender_pauses.senders()) == 2)
        left_ns = {sender: ns - clock.boottime_ns() for sender, ns in sender_pauses.senders().items()}

        assert 5 * HOUR_NS < left_ns["told@here.example"] <= 6 * HOUR_NS
        assert HOUR_NS < left_ns["ruled@here.example"] <= 2 * HOUR_NS
        assert len(relay.sender.queue) == 2
