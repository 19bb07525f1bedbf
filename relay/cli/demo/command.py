"""`relay demo`: a relay, an upstream that cuts off whoever exceeds its limit, and a verdict.

The upstream is in this program, so that what it counted is at hand; the relay is another
program, the one that `relay run` starts.  Finite: it ends when all is relayed, when the
upstream refused something, when the relay ended, or `PATIENCE_NS` after the ideal.
Everything is on loopback and in a temporary folder, which is gone at the end, also after
SIGINT, SIGTERM and SIGHUP.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import tempfile
from pathlib import Path

import aiosmtplib
import click
from rich.text import Text

from relay.cli.demo.host import USER, DemoRelay, RelayEnded, reserved_port
from relay.cli.demo.picture import PACE_CELLS, Frame, Picture
from relay.cli.demo.plan import Judgement, Plan, judge, shown_seconds, verdict_lines
from relay.cli.options import printable
from relay.cli.render import console
from relay.clock import SECOND_NS, SystemClock
from relay.control.operations import Unreachable
from relay.control.socket import ControlClient
from relay.policy.limits import LimitSettings
from relay.policy.units import HostPort, duration_ns
from relay.practice.account import PracticeBehaviour
from relay.practice.smarthost import PracticeSmarthost
from relay.status.snapshot import Snapshot

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
    """Something came between."""


def _duration(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    try:
        duration_ns(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


@click.command()
@click.option(
    "--messages", type=click.IntRange(1, MOST_MESSAGES), default=60, show_default=True, help="To relay."
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
    plan = Plan(messages, LimitSettings.model_validate({"messages": count, "per": per}), per)
    try:
        return asyncio.run(_until_told(plan))
    except BrokenPipeError:
        raise
    except OSError as error:
        click.echo(f"cannot show the demo: {error}", err=True)
        return os.EX_OSERR


async def _until_told(plan: Plan) -> int:
    """Show the demo; a signal ends it, and it cleans up all the same."""
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


class Demo:
    """One showing of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._out = console()
        self._clock = SystemClock()
        self._began_ns = self._clock.boottime_ns()
        self._handed_in_ns: int | None = None
        """How long it took to hand everything in, once it is."""

    async def run(self) -> int:
        """Show it; return the exit code.  Raises OSError."""
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
        """Start the relay, hand everything in, and watch.  Raises NotFinished, RelayEnded."""
        click.echo(
            f"A practice upstream allows {self._plan.limit.label}, and cuts off whoever sends more.\n"
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
        """Show a frame after the other, until all is relayed and settled."""
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
        """Hand all messages to the relay, over several connections at once.  Raises NotFinished."""
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
        """Print the verdict, what it means, and what to type next."""
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
