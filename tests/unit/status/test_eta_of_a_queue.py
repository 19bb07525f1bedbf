"""What was foretold of each message, against what then happened, in a whole relay.

Time is virtual (`tests.fakes.virtual_time`): everything happens at an exact instant.  The
only surprises are those before the instant at which the queue is looked at.
"""

import asyncio
import re
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.queue.queued import NO_REASON, origin_of
from relay.queue.scheduler import Queued, State
from relay.sender import spool_thread
from relay.spool.disk.durable import RealDisk
from relay.status.snapshot import MessageView, QueueState, UpstreamStatus
from relay.status.watch import FEW
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import Script, Smarthost, Turn, Until
from tests.fakes.virtual_time import VirtualTimeLoop, pass_time
from tests.unit.sender.in_process_relay import Relay, policy_of

TOLERANCE_NS = 1_000
"""Timers count in floating point, and may be a nanosecond late: once for each slot in a row."""
LONGEST_SECONDS = 3000
LONGEST_WINDOW_NS = 21 * SECOND_NS
HELD_BY = re.compile(r"|limit .+|pause: .+|back-off|connections|ceiling of lane [abc]")

WARM = QueueId("warm")
SENDERS = ("a@here.example", "b@here.example", "c@there.example")
DOMAINS = ("x.example", "y.example")


class Unsynced(RealDisk):
    """A disk of a host that never loses power."""

    def sync(self, fd: int) -> None:
        pass

    def sync_content(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


@dataclass(frozen=True)
class Mail:
    sender: str
    domains: tuple[str, ...]
    is_deferred: bool = False
    """Refused for now, until the look."""


@dataclass(frozen=True)
class Scene:
    """What there is before the look, and when that is."""

    limits: tuple[str, ...]
    mails: tuple[Mail, ...]
    connections: int = 1
    max_recipients: int = 100
    transaction_s: float = 0.0
    looks_after_s: float = 1.0
    is_pausing: bool = False
    """The upstream refuses us from half that time on, until the look."""
    held: frozenset[int] = frozenset()
    lanes: str = ""
    """As the policy has them."""
    upstream: str = ""
    """More keys of it, each behind a comma."""
    other: str = ""
    """Where another upstream stands: nowhere, `last`, or `first`, where all mail goes through it."""


@st.composite
def limits(draw: st.DrawFn) -> str:
    unit = draw(st.sampled_from(["messages", "recipients"]))
    each = draw(st.sampled_from(["", "", "sender", "sender_domain", "recipient_domain"]))
    count, per_s = draw(st.integers(1, 5)), draw(st.integers(2, 20))
    return f"{{{unit}: {count}, per: {per_s}s{', for_each: ' + each if each else ''}}}"


@st.composite
def mails(draw: st.DrawFn, most: int) -> Mail:
    domains = draw(st.lists(st.sampled_from(DOMAINS), min_size=1, max_size=most))
    return Mail(draw(st.sampled_from(SENDERS)), tuple(domains), draw(st.integers(0, 5)) == 0)


@st.composite
def lanes(draw: st.DrawFn) -> str:
    found = []
    for name in draw(st.lists(st.sampled_from(["a@here", "b@here", "c@there"]), max_size=2, unique=True)):
        keys = [f"sender: {name}.example", f"share: {draw(st.integers(1, 45))}"]
        if draw(st.booleans()):
            keys.append(f"ceiling: {draw(st.sampled_from([10, 50, 80]))}")
        if draw(st.booleans()):
            keys.append(f"patience: {draw(st.sampled_from([3, 30]))}s")
        found.append(f"{name[0]}: {{{', '.join(keys)}}}")
    return f"lanes: {{{', '.join([*found, 'default: {}'])}}}"


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    number = draw(st.integers(1, 14))
    connections = draw(st.integers(1, 3))
    # Parts that end at the same instant come to the end of the line in an order that nobody knows.
    most = 1 if connections > 1 else 4
    return Scene(
        tuple(draw(st.lists(limits(), max_size=3, unique=True))),
        tuple(draw(mails(most)) for _ in range(number)),
        connections,
        draw(st.sampled_from([1, 2, 100])),
        draw(st.sampled_from([0.0, 0.25, 1.5])),
        draw(st.sampled_from([0.137, 1.037, 5.337, 12.737])),
        draw(st.integers(0, 3)) == 0,
        frozenset(draw(st.sets(st.integers(0, number - 1), max_size=2))),
        draw(st.just("") | lanes()),
    )


class Play:
    """One scene in a whole relay: what was foretold, and what happened."""

    def __init__(self, scene: Scene, folder: Path, clock: FakeClock) -> None:
        self.scene, self.folder, self.clock = scene, folder, clock
        self.foretold: dict[QueueId, MessageView] = {}
        self.at_ns = 0
        self.upstream: UpstreamStatus
        self.relayed_at_ns: dict[QueueId, int] = {}
        """When the last recipient of each was relayed, by the wall clock."""
        self._is_before = True
        self._is_refusing = False
        self._ids: list[QueueId] = []

    async def run(self) -> None:
        """Let it happen."""
        script = Script(rcpt=self._rcpt, mail=self._mail, eod=self._eod)
        self._host = Smarthost(script)
        async with (
            self._host as host,
            Relay(self._policy(host.port, self.scene), Unsynced(), self.clock) as relay,
        ):
            # Until one was relayed, nobody knows how long that takes.
            await self._warm_up(relay)
            for number, mail in enumerate(self.scene.mails):
                recipients = [f"r{number}.{place}@{domain}" for place, domain in enumerate(mail.domains)]
                self._ids.append(relay.accept(*recipients, sender=mail.sender))
            await pass_time(self.scene.looks_after_s / 2)
            self._is_refusing = self.scene.is_pausing
            await pass_time(self.scene.looks_after_s / 2)
            self._is_before = self._is_refusing = False
            queued = [self._ids[number] for number in self.scene.held if relay.queued(self._ids[number])]
            await relay.operator.act("hold", queued)
            self.at_ns = self.clock.wall_ns()
            await self._look(relay)
            held = sum(message.state is QueueState.HELD for message in self.foretold.values())
            for _ in range(LONGEST_SECONDS):
                if len(relay.sender.queue) == held:
                    return
                await pass_time(1)
            raise AssertionError(f"it never ended:\n{relay.log.getvalue()}")

    async def _look(self, relay: Relay) -> None:
        self.upstream = relay.watch.snapshot().upstreams[0]
        self.foretold = {message.queue_id: message for message in relay.watch.listing().messages()}

    async def _warm_up(self, relay: Relay) -> None:
        relay.accept("r-1.0@warm.example", sender="warm@warm.example")
        while self.relayed_at_ns.get(WARM, self.clock.wall_ns()) >= self.clock.wall_ns():
            await pass_time(0.1)

    def _policy(self, port: int, scene: Scene) -> Policy:
        return parse_policy(self._text(port, scene), self.folder / "policy.yaml")

    @staticmethod
    def _text(port: int, scene: Scene) -> bytes:
        isp = f"""
  isp: {{host: 127.0.0.1, port: {port}, tls: none, connections: {scene.connections},
    max_recipients: {scene.max_recipients}, limits: [{", ".join(scene.limits)}]{scene.upstream}}}"""
        other = f"""
  other: {{host: 127.0.0.1, port: {port}, tls: none, history: ./other,
    limits: [{{messages: 2, per: 5s}}], connections: {scene.connections}}}"""
        upstreams = {"": isp, "last": isp + other, "first": other + isp}[scene.other]
        return f"""
spool: ./spool
hostname: relay.test
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams: {upstreams}
retry: {{min: 7s, max: 9s, lifetime: 1d}}
{scene.lanes}
""".encode()

    def _mail(self, _: str) -> Turn:
        return "421 4.7.0 too many of you" if self._is_refusing else "250 2.1.0 ok"

    def _rcpt(self, argument: str) -> Turn:
        number = _number(argument)
        is_refused = self._is_before and number >= 0 and self.scene.mails[number].is_deferred
        return "450 4.2.1 not now" if is_refused else "250 2.1.5 ok"

    def _eod(self, _: str) -> Turn:
        takes_ns = int(self.scene.transaction_s * SECOND_NS)
        number = _number(self._host.transactions[-1].recipients[0])
        queue_id = WARM if number < 0 else self._ids[number]
        self.relayed_at_ns[queue_id] = self.clock.wall_ns() + takes_ns
        is_over = asyncio.Event()
        asyncio.get_running_loop().call_later(self.scene.transaction_s, is_over.set)
        return [Until(is_over), "250 2.0.0 ok"]


def _number(recipient: str) -> int:
    return int(recipient.partition("r")[2].partition(".")[0])


def play_out(play: Coroutine[object, object, None], clock: FakeClock) -> None:
    """Run a play in virtual time, in which writing takes none, since no estimate knows of it.

    Whether endings are several, and so gather, depends on threads.
    """
    with (
        pytest.MonkeyPatch.context() as patched,
        asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner,
    ):
        patched.setattr(spool_thread, "GATHERS_SECONDS", 0.0)
        runner.run(play)


def played(scene: Scene) -> Play:
    """Return a scene that is over."""
    with tempfile.TemporaryDirectory() as folder:
        clock = FakeClock()
        play = Play(scene, Path(folder), clock)
        play_out(play.run(), clock)
        return play


# Parts of messages that were deferred together: the next message is taken before a part is settled.
TOGETHER = Scene(
    limits=("{messages: 4, per: 2s}",),
    mails=(Mail(SENDERS[0], (DOMAINS[0],) * 3, is_deferred=True),) * 2,
    max_recipients=1,
    transaction_s=0.25,
    looks_after_s=0.137,
)
# A second round begins in the order of the envelope again.
ANOTHER_ROUND = Scene(
    limits=("{messages: 3, per: 7s, for_each: recipient_domain}",),
    mails=(Mail(SENDERS[0], DOMAINS, is_deferred=True), Mail(SENDERS[0], DOMAINS[:1], is_deferred=True)),
    max_recipients=1,
    looks_after_s=0.137,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(TOGETHER)
@example(ANOTHER_ROUND)
@given(scenes())
def test_what_was_foretold_of_each_message_is_what_happens(scene: Scene) -> None:
    play = played(scene)
    waiting = []
    for queue_id, message in play.foretold.items():
        if message.state is QueueState.HELD:
            assert (message.eta_at_ns, message.held_by) == (None, "hold")
            continue
        assert message.eta_at_ns is not None
        assert HELD_BY.fullmatch(message.held_by), message.held_by
        event(message.held_by.partition(" ")[0].rstrip(":") or "next")
        off_ns = play.relayed_at_ns[queue_id] - message.eta_at_ns
        if kinds_of_key(scene) < 2:
            assert abs(off_ns) <= TOLERANCE_NS, (queue_id, message, off_ns / SECOND_NS)
        if message.state in (QueueState.WAITING, QueueState.ACTIVE):
            waiting.append(message.eta_at_ns)
    # The drain is the last of what waits.
    assert play.upstream.drained_at_ns == max(waiting, default=play.at_ns)


def kinds_of_key(scene: Scene) -> int:
    """Return how many kinds of key its limits have."""
    return len({limit.partition("for_each: ")[2] for limit in scene.limits} - {""})


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenes().filter(lambda scene: kinds_of_key(scene) > 1))
def test_with_several_kinds_of_key_the_drain_is_nearly_right(
    scene: Scene,
) -> None:
    play = played(scene)
    etas = [message.eta_at_ns for message in play.foretold.values() if message.eta_at_ns is not None]
    relayed = [play.relayed_at_ns[queue_id] for queue_id, m in play.foretold.items() if m.eta_at_ns]
    if etas:
        assert abs(max(relayed) - max(etas)) <= 2 * LONGEST_WINDOW_NS


async def test_a_long_queue_is_foreseen_when_asked_and_its_drain_kept(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 9, ", limits: [{messages: 100, per: 1h}]")
    clock = FakeClock()
    async with Relay(policy, clock=clock) as relay:
        # A connection that is refused while the estimate is made would pause the upstream.
        relay.sender.upstreams.halt()
        now_ns = clock.boottime_ns()
        for number in range(2 * FEW):
            queued = Queued(QueueId(f"{number:016d}"), origin_of("a@x.example"), 1, now_ns, 1)
            relay.sender.queue.add(queued, now_ns=0)
        assert relay.watch.snapshot().upstreams[0].drained_at_ns is None

        await relay.watch.foresee()

        # By a hundred: the last ones go that many windows later.
        drained_at_ns = relay.watch.snapshot().upstreams[0].drained_at_ns
        assert drained_at_ns is not None
        windows = policy.upstreams["isp"].limits[0].per_ns + SECOND_NS
        assert drained_at_ns - clock.wall_ns() == (2 * FEW // 100 - 1) * windows
        etas = [message.eta_at_ns for message in relay.watch.listing().messages()]
        assert max(eta for eta in etas if eta is not None) == drained_at_ns
        coming = relay.watch.coming()
        assert [message.queue_id for message in coming.first] == [f"{number:016d}" for number in range(10)]
        assert len(coming.leaving) == 60
        assert coming.leaving[-1] == (drained_at_ns, 0)
        assert [at_ns for at_ns, _ in coming.leaving] == sorted(at_ns for at_ns, _ in coming.leaving)
        for number in range(2 * FEW):
            relay.sender.queue.remove(QueueId(f"{number:016d}"))


async def test_of_a_short_queue_what_comes_is_told_at_once(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 9, ", limits: [{messages: 1, per: 1h}]")
    clock = FakeClock()
    async with Relay(policy, clock=clock) as relay:
        relay.sender.upstreams.halt()
        now_ns, names = clock.boottime_ns(), [QueueId(f"{number:016d}") for number in range(3)]
        for queue_id in names:
            relay.sender.queue.add(Queued(queue_id, origin_of("a@x.example"), 1, now_ns, 1), now_ns=now_ns)
        relay.sender.queue.hold(names[0], NO_REASON)

        coming = relay.watch.coming()

        assert [(each.queue_id, each.held_by) for each in coming.first] == [
            (names[1], ""),
            (names[2], "limit 1 messages per 3600s"),
            (names[0], "hold"),
        ]
        assert [left for _, left in coming.leaving] == [1, 0]
        assert coming.first[1].eta_at_ns == coming.leaving[1][0]
        for queue_id in names:
            relay.sender.queue.remove(queue_id)


BY_DOMAIN = ", limits: [{recipients: 1000, per: 1h, for_each: recipient_domain}]"


def refused_in_part(argument: str) -> str:
    """Refuse one recipient in words that no rule knows, and another one for now."""
    if "gone@" in argument:
        return "550 Administrative prohibition"
    return "451 4.2.1 not now" if "late@" in argument else "250 ok"


async def test_what_waits_can_be_listed_though_its_attempt_ends_meanwhile(tmp_path: Path) -> None:
    held = asyncio.Event()
    script = Script(connect=[Until(held), "220 ready"], rcpt=refused_in_part)
    rest = "retry: {min: 1h, max: 4h, lifetime: 5d}"
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port, BY_DOMAIN, rest)) as relay:
        queue_id = relay.accept("late@x.example", "quick@y.example")
        await relay.until(lambda: (it := relay.queued(queue_id)) and it.state is State.WAITING)
        listing = relay.watch.listing()
        held.set()
        await relay.until(lambda: (it := relay.queued(queue_id)) and it.state is State.DEFERRED)

        (message,) = await asyncio.to_thread(listing.messages)
        assert (message.state, message.recipients_left) == (QueueState.WAITING, 2)


async def test_what_is_left_of_a_believed_message_can_be_foretold(tmp_path: Path) -> None:
    script = Script(rcpt=refused_in_part)
    rest = "retry: {min: 1h, max: 4h, lifetime: 5d}"
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port, BY_DOMAIN, rest)) as relay:
        queue_id = relay.accept("gone@x.example", "late@y.example")
        await relay.until(lambda: (it := relay.queued(queue_id)) and it.state is State.DEFERRED)
        assert await relay.operator.resume("isp", believes=True) == OK

        # Beside it perhaps its report.
        (message,) = [each for each in await relay.operator.queue() if each.queue_id == queue_id]
        assert message.recipients_left == 1
        assert (queued := relay.queued(queue_id)) is not None
        assert queued.domains == (("y.example", 1),)
