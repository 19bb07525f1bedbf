"""`relay demo`: a relay, an upstream that cuts off whoever exceeds its limit, and a verdict.

The upstream is in this program, so that its counts are at hand; the relay is a program of its own, as
`relay run` starts it.  The demo ends when all is relayed, when the upstream refused something, when
the relay ended, or `PATIENCE_NS` after the ideal.  Everything is on loopback and in a temporary
folder, which is removed at the end, also after SIGINT, SIGTERM and SIGHUP.

The verdict rests on the upstream's ledger alone; what the relay says of itself is only shown.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosmtplib
import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from relay.cli.options import printable
from relay.clock import SECOND_NS, SystemClock
from relay.control.client import ControlClient
from relay.control.operations import Unreachable
from relay.policy.limits import LimitSettings
from relay.policy.units import HostPort, duration_ns
from relay.practice.account import PracticeBehaviour
from relay.practice.smarthost import PracticeSmarthost
from relay.practice.witness import Witness, Witnessed
from relay.status.snapshot import LimitStatus, QueueState, Snapshot
from relay.throttle.limit import plain_words

PATIENCE_NS = 30 * SECOND_NS
"""How much longer than the ideal the demo may take before it gives up."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    messages: int
    limit: LimitSettings
    per: str
    """The length of the window, as a policy writes it."""

    @property
    def ideal_ns(self) -> int:
        """The least time from the first message to the last that the limit allows."""
        return (-(-self.messages // self.limit.count) - 1) * self.limit.per_ns

    @property
    def latest_ns(self) -> int:
        return self.ideal_ns + PATIENCE_NS

    @property
    def longest_delay_ns(self) -> int:
        return self.limit.per_ns // 10


@dataclass(frozen=True, slots=True)
class Judgement:
    plan: DemoPlan
    most: int
    """In any window."""
    relayed: int
    """Messages, each counted once."""
    repeated: int
    """Relayed twice, although nothing crashed."""
    refused: int
    taken_ns: int
    """From the first message to the last, by the instants that counted."""

    @property
    def is_within(self) -> bool:
        return self.most <= self.plan.limit.count

    @property
    def is_complete(self) -> bool:
        return self.relayed == self.plan.messages and self.repeated == 0

    @property
    def is_good(self) -> bool:
        return self.is_within and self.is_complete and self.refused == 0


def judge(plan: DemoPlan, ledger: Witness) -> Judgement:
    recipients = [entry.envelope.recipients for entry in ledger.entries if entry.fate is Witnessed.RELAYED]
    counted_ns = [entry.counted_at_ns for entry in ledger.entries]
    return Judgement(
        plan=plan,
        most=ledger.most_in_any_window(),
        relayed=len(set(recipients)),
        repeated=len(recipients) - len(set(recipients)),
        refused=ledger.refused,
        taken_ns=max(counted_ns, default=0) - min(counted_ns, default=0),
    )


def shown_seconds(span_ns: int) -> str:
    return f"{span_ns / SECOND_NS:.1f}s"


def verdict_lines(judgement: Judgement) -> list[tuple[str, bool | None]]:
    """None: the line is only told."""
    plan, limit = judgement.plan, judgement.plan.limit
    repeated = f", {judgement.repeated} of them twice" if judgement.repeated else ", each once"
    taken = f"{shown_seconds(judgement.taken_ns)} from first to last"
    return [
        (
            f"most in any {plan.per:<9} {judgement.most} of {limit.count} allowed",
            judgement.is_within,
        ),
        (f"refused               {judgement.refused}", judgement.refused == 0),
        (
            f"relayed               {judgement.relayed} of {plan.messages}{repeated}",
            judgement.is_complete,
        ),
        (
            f"time                  {taken}; the ideal is {shown_seconds(plan.ideal_ns)}",
            None,
        ),
    ]


USER = "demo"
STOP_SECONDS = 4.0
"""How long the relay may take to finish what is in flight, before it is ended."""
_LAST_LINES = 3
_LONGEST_LINE_BYTES = 1 << 20

_POLICY = """\
spool: spool
listen:
  - {{address: "127.0.0.1:{port}", clients: [127.0.0.0/8]}}
hostname: demo.invalid
upstreams:
  practice:
    host: 127.0.0.1
    port: {upstream_port}
    tls: none
    auth: {{user: {user}, password_file: password}}
    connections: 4
    limits:
      - {{messages: {count}, per: {per}}}
"""


class RelayEnded(Exception):  # noqa: N818 - a state, not an error of ours
    """The text says how the relay ended by itself, and what it said last."""


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a free loopback port for the first listener, while the context lasts.

    The kernel gives a bound port to nobody else, and lets a second socket with
    SO_REUSEADDR take it as long as the first does not listen (socket(7)).
    """
    with socket.socket() as reserving:
        reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserving.bind(("127.0.0.1", 0))
        port: int = reserving.getsockname()[1]
        yield port


class DemoRelay:
    """One relay.  `stop` is called after `start`, also where that failed."""

    def __init__(self, folder: Path, plan: DemoPlan, *, port: int, upstream_port: int, password: str) -> None:
        """Write the policy and the password into the folder.  Raises OSError."""
        self.policy_path = folder / "policy.yaml"
        self.spool = folder / "spool"
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._port = port
        self._process: asyncio.subprocess.Process | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        (folder / "password").touch(mode=0o600, exist_ok=False)
        (folder / "password").write_text(password + "\n")
        self.policy_path.write_text(
            _POLICY.format(
                port=port,
                upstream_port=upstream_port,
                user=USER,
                count=plan.limit.count,
                per=plan.per,
            )
        )

    async def start(self) -> None:
        """Return once it takes mail.  Raises RelayEnded, OSError."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "relay",
            "run",
            "--policy",
            str(self.policy_path),
            "--log",
            "text",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # A service manager waits for the demo's own signs of life, if for any.
            env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
            # Ctrl-C reaches the demo alone, which then stops the relay as a service manager would.
            start_new_session=True,
            limit=_LONGEST_LINE_BYTES,
        )
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._hearing = asyncio.create_task(self._hear(self._process, listening))
        await asyncio.wait([listening, self.ended], return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            raise RelayEnded(self.ended.result())

    async def stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._hearing is not None:
            await self._hearing

    async def _hear(self, process: asyncio.subprocess.Process, listening: "asyncio.Future[str]") -> None:
        """Read to the end, so that the pipe never fills up."""
        if process.stderr is None:
            raise AssertionError("a process was started without its pipes")
        async for line in process.stderr:
            said = printable(line.decode("utf-8", "replace").rstrip())
            self._said.append(said)
            if f" listening on 127.0.0.1:{self._port} " in said:
                listening.set_result(said)
        code = await process.wait()
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        self.ended.set_result("\n  ".join([f"the relay ended {how}; it said last:", *self._said]))


BAR_CELLS = 24
PACE_CELLS = 64
"""How many columns of the pace are shown, the newest."""
_SHOWN_STATES = (QueueState.WAITING, QueueState.ACTIVE, QueueState.DEFERRED)
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Frame:
    elapsed_ns: int
    snapshot: Snapshot | None
    """The relay as it sees itself; None before it first told."""
    relayed: int
    """This and all below by the upstream's own ledger."""
    refused: int
    most: int
    pace: Sequence[int]
    """How many the upstream counted in each fifth of a window."""

    def queued(self, state: QueueState) -> int:
        return 0 if self.snapshot is None else self.snapshot.counts(state).messages

    @property
    def queued_at_all(self) -> int | None:
        return None if self.snapshot is None else sum(self.queued(state) for state in QueueState)

    @property
    def window(self) -> LimitStatus | None:
        if self.snapshot is None:
            return None
        return next((limit for upstream in self.snapshot.upstreams for limit in upstream.limits), None)


class Picture:
    def __init__(self, plan: DemoPlan, out: Console) -> None:
        self._plan = plan
        self._has_blocks = out.encoding.lower().startswith("utf")
        can_move = out.is_terminal and not out.is_dumb_terminal
        self._live = Live(console=out, auto_refresh=False) if can_move else None
        self._next_line_ns = 0

    def shown(self) -> AbstractContextManager[object]:
        return self._live or nullcontext()

    def show(self, frame: Frame, *, is_last: bool = False) -> None:
        if self._live is not None:
            self._live.update(Group(*self._rows(frame)), refresh=True)
        elif frame.elapsed_ns >= self._next_line_ns or is_last:
            self._next_line_ns = (frame.elapsed_ns // SECOND_NS + 1) * SECOND_NS
            click.echo(self._line(frame))

    def _line(self, frame: Frame) -> str:
        window, limit = frame.window, self._plan.limit
        waiting, active, deferred = (frame.queued(state) for state in _SHOWN_STATES)
        return (
            f"{shown_seconds(frame.elapsed_ns):>6}  window {window.used if window else 0:>2}/{limit.count}"
            f"  waiting {waiting:>2}  active {active:>2}  deferred {deferred:>2}"
            f"  relayed {frame.relayed:>2}/{self._plan.messages}"
        )

    def _rows(self, frame: Frame) -> list[Text]:
        plan, window = self._plan, frame.window
        waiting, active, deferred = (frame.queued(state) for state in _SHOWN_STATES)
        count = plan.limit.count
        rows = [
            ("window", self._bar(window.used if window else 0, count, "yellow"), self._slots(frame)),
            (
                "queue",
                self._bar(frame.queued_at_all or 0, plan.messages, "cyan"),
                f"{waiting} waiting, {active} active, {deferred} deferred",
            ),
            (
                "relayed",
                self._bar(frame.relayed, plan.messages, "green"),
                f"{frame.relayed} of {plan.messages}",
            ),
            (
                "upstream",
                self._bar(frame.most, count, "red" if frame.refused else "magenta"),
                f"most in any {plan.per}: {frame.most} of {count}, {frame.refused} refused",
            ),
            ("pace", self._pace(frame.pace), ""),
            (
                "time",
                Text(shown_seconds(frame.elapsed_ns)),
                f"(ideal from first to last: {shown_seconds(plan.ideal_ns)})",
            ),
        ]
        return [Text.assemble(f"  {name:<9} ", bar, "  ", words) for name, bar, words in rows]

    def _slots(self, frame: Frame) -> str:
        window = frame.window
        if window is None or frame.snapshot is None:
            return "starting"
        if window.opens_at_ns is None:
            return f"{window.used} of {window.count} slots taken"
        opens_in_ns = max(0, window.opens_at_ns - frame.snapshot.at_ns)
        return f"all taken, next opens in {shown_seconds(opens_in_ns)}"

    def _bar(self, count: int, most: int, style: str) -> Text:
        full, empty = ("█", "░") if self._has_blocks else ("#", "-")
        cells = min(BAR_CELLS, -(-count * BAR_CELLS // most))
        return Text.assemble((full * cells, style), (empty * (BAR_CELLS - cells), "dim"))

    def _pace(self, pace: Sequence[int]) -> Text:
        """Return a column for each fifth of a window: how full it was, of a whole window's limit."""
        if not self._has_blocks:
            return Text("".join("#" if count else "." for count in pace[-PACE_CELLS:]), "magenta")
        levels = [min(len(_BLOCKS), -(-count * len(_BLOCKS) // self._plan.limit.count)) for count in pace]
        return Text(
            "".join(_BLOCKS[level - 1] if level else "·" for level in levels[-PACE_CELLS:]), "magenta"
        )


CUT_OFF = "30s"
CLIENTS = 4
"""Connections over which the mail is handed in."""
FRAME_SECONDS = 0.1
"""Between two looks at the relay."""
LAST_WORDS_SECONDS = 2.0
"""Between a relay's closing its connections and its being gone."""
MOST_MESSAGES = 1000
SENDER = "demo@example.org"


class NotFinished(Exception):  # noqa: N818 - the demo is over, and the text says why
    pass


def _duration(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    try:
        duration_ns(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(1, MOST_MESSAGES),
    default=60,
    show_default=True,
    help="Messages to relay.",
)
@click.option(
    "--limit",
    "count",
    type=click.IntRange(1, MOST_MESSAGES),
    default=10,
    show_default=True,
    help="Messages that the upstream allows in any window.",
)
@click.option(
    "--per", callback=_duration, default="5s", show_default=True, help="How long the window is, e.g. 2s, 1m."
)
def demo(messages: int, count: int, per: str) -> int:
    """Watch a relay pace mail through an upstream that cuts off whoever is too fast.

    Takes half a minute and leaves nothing behind.  The exit code is 0 if the upstream
    got every message and refused none.
    """
    plan = DemoPlan(messages, LimitSettings.model_validate({"messages": count, "per": per}), per)
    try:
        return asyncio.run(_until_told(plan))
    except OSError as error:
        click.echo(f"cannot show the demo: {error}", err=True)
        return os.EX_OSERR


async def _until_told(plan: DemoPlan) -> int:
    loop = asyncio.get_running_loop()
    showing = loop.create_task(Demo(plan).run())
    told: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        # Only once: the clean-up that follows is short, and is not to be cut short itself.
        if not told:
            told.append(number)
            showing.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        return await showing
    except asyncio.CancelledError:
        if not told:
            raise
        click.echo("interrupted; everything was removed", err=True)
        return 128 + told[0]


def _console() -> Console:
    """Take stdout for a terminal only if it is one; elsewhere nothing is folded."""
    terminal: dict[str, Any] = {}
    if not sys.stdout.isatty():
        terminal = {"width": 100_000, "no_color": True, "force_terminal": False}
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, **terminal)


class Demo:
    def __init__(self, plan: DemoPlan) -> None:
        self._plan = plan
        self._out = _console()
        self._clock = SystemClock()
        self._began_ns = self._clock.boottime_ns()
        self._handed_in_ns: int | None = None
        """None until everything is handed in."""

    async def run(self) -> int:
        """Return the exit code.  Raises OSError."""
        plan = self._plan
        password = secrets.token_urlsafe(24)
        upstream = PracticeSmarthost(
            HostPort("127.0.0.1", 0),
            USER,
            password,
            PracticeBehaviour(plan.limit, duration_ns(CUT_OFF), longest_delay_ns=plan.longest_delay_ns),
            clock=self._clock,
        )
        why_not = ""
        with tempfile.TemporaryDirectory(prefix="relay-demo-") as folder, reserved_port() as port:
            await upstream.start()
            relay = DemoRelay(Path(folder), plan, port=port, upstream_port=upstream.port, password=password)
            try:
                async with asyncio.timeout(plan.latest_ns / SECOND_NS):
                    await self._show(relay, upstream, port)
            except (NotFinished, RelayEnded) as end:
                why_not = str(end)
            except TimeoutError:
                why_not = (
                    f"given up after {shown_seconds(plan.latest_ns)}: the relay or this machine is too slow"
                )
            finally:
                await relay.stop()
                await upstream.close()
        judgement = judge(plan, upstream.ledger)
        self._conclude(judgement, why_not)
        return os.EX_OK if judgement.is_good and not why_not else 1

    async def _show(self, relay: DemoRelay, upstream: PracticeSmarthost, port: int) -> None:
        """Start, hand in, watch.  Raises NotFinished, RelayEnded."""
        click.echo(
            f"A practice upstream allows {plain_words(self._plan.limit)}, and cuts off whoever sends more.\n"
            f"A relay takes {self._plan.messages} messages, as fast as they can be handed over.\n"
            "While it runs you may look at it from another terminal:\n"
            f"  .venv/bin/relay status --policy {printable(relay.policy_path)}\n"
        )
        await relay.start()
        handing_in = asyncio.create_task(self._hand_in(port))
        client = ControlClient(relay.spool)
        try:
            with (picture := Picture(self._plan, self._out)).shown():
                await self._watch(relay, upstream, client, picture, handing_in)
        finally:
            handing_in.cancel()
            await asyncio.gather(handing_in, return_exceptions=True)
            await client.close()

    async def _watch(
        self,
        relay: DemoRelay,
        upstream: PracticeSmarthost,
        client: ControlClient,
        picture: Picture,
        handing_in: "asyncio.Task[None]",
    ) -> None:
        snapshot: Snapshot | None = None
        while True:
            # Whether it cannot answer because it ended is seen below, or in the next turn.
            with contextlib.suppress(Unreachable):
                snapshot = await client.snapshot()
            frame = self._frame(snapshot, upstream)
            is_over = frame.relayed >= self._plan.messages and frame.queued_at_all == 0
            picture.show(frame, is_last=is_over or frame.refused > 0 or relay.ended.done())
            if frame.refused:
                raise NotFinished(f"the upstream refused a message: {upstream.ledger.entries[-1].reply}")
            if handing_in.done() and handing_in.exception() is not None:
                # Its end may be the reason, and then is heard of in a moment.
                await asyncio.wait([relay.ended], timeout=LAST_WORDS_SECONDS)
            if relay.ended.done():
                raise RelayEnded(relay.ended.result())
            if handing_in.done():
                handing_in.result()
                if is_over:
                    return
            await asyncio.wait([relay.ended], timeout=FRAME_SECONDS)

    def _frame(self, snapshot: Snapshot | None, upstream: PracticeSmarthost) -> Frame:
        now_ns = self._clock.boottime_ns()
        column_ns = max(1, self._plan.limit.per_ns // 5)
        columns = (now_ns - self._began_ns) // column_ns + 1
        pace = [0] * min(columns, PACE_CELLS)
        for entry in upstream.ledger.entries:
            column = (entry.counted_at_ns - self._began_ns) // column_ns - (columns - len(pace))
            if column >= 0:
                pace[column] += 1
        ledger = upstream.ledger
        return Frame(
            elapsed_ns=now_ns - self._began_ns,
            snapshot=snapshot,
            relayed=ledger.relayed,
            refused=ledger.refused,
            most=ledger.most_in_any_window(),
            pace=pace,
        )

    async def _hand_in(self, port: int) -> None:
        """Use several connections at once.  Raises NotFinished."""
        began_ns = self._clock.boottime_ns()

        async def client(first: int) -> None:
            async with aiosmtplib.SMTP(
                hostname="127.0.0.1", port=port, local_hostname="demo.invalid", start_tls=False
            ) as smtp:
                for number in range(first, self._plan.messages + 1, CLIENTS):
                    await smtp.sendmail(SENDER, [f"reader-{number}@example.com"], self._content(number))

        try:
            await asyncio.gather(*(client(first) for first in range(1, CLIENTS + 1)))
        except (aiosmtplib.SMTPException, OSError) as error:
            raise NotFinished(f"the relay did not take a message: {printable(error)}") from error
        self._handed_in_ns = self._clock.boottime_ns() - began_ns

    def _content(self, number: int) -> bytes:
        return (
            f"From: <{SENDER}>\r\nTo: <reader-{number}@example.com>\r\n"
            f"Subject: number {number} of {self._plan.messages}\r\n\r\nPaced.\r\n"
        ).encode("ascii")

    def _conclude(self, judgement: Judgement, why_not: str) -> None:
        plan, say = self._plan, self._out.print
        say("\nVerdict, by the upstream's own ledger:", style="bold")
        for text, is_right in verdict_lines(judgement):
            mark, style = {True: ("ok", "green"), False: ("NOT OK", "bold red"), None: ("", "")}[is_right]
            say(Text.assemble(f"  {text:<52} ", (mark, style)) if mark else f"  {text}")
        say()
        if why_not or not judgement.is_good:
            say(Text("FAILED" + (f": {why_not}" if why_not else ""), "bold red"))
            return
        handed_in = shown_seconds(self._handed_in_ns or 0)
        say(Text("PASSED", "bold green"))
        say(
            f"The relay took {plan.messages} messages within {handed_in}, stored them durably, and passed\n"
            "them on as fast as its upstream allows and never faster.  That upstream counts\n"
            "each message at a moment it does not tell, replies late, and would have refused\n"
            f"everything for {CUT_OFF} after one too many in any window.\n\n"
            "Next: `make run` starts a relay that waits for your mail, and says what to type."
        )
