"""`relay demo`: a relay, an upstream that cuts off whoever exceeds its limit, and a verdict.

The upstream is in this program, so that its counts are at hand; the relay is a program of its own, as
`relay run` starts it.  All is on loopback and in a temporary folder, which is removed at the end, also after
SIGINT, SIGTERM and SIGHUP.  The verdict rests on what the upstream counted.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiosmtplib
import click

from relay.cli.options import printable
from relay.clock import SECOND_NS, SystemClock
from relay.policy.lane import LimitSettings
from relay.policy.units import HostPort
from relay.practice.smarthost import PracticeAccount, PracticeSmarthost, Practised
from relay.smtp.sasl import Credentials
from relay.throttle.limit import plain_words

CUT_OFF_SECONDS = 30
PATIENCE_NS = 30 * SECOND_NS
"""How much longer than the ideal the demo may take before it gives up."""
STOP_SECONDS = 4.0
FRAME_SECONDS = 0.1
BAR_CELLS = 24
_POLICY = """\
spool: spool
listen: [{{address: "127.0.0.1:{port}", clients: [127.0.0.0/8]}}]
hostname: demo.invalid
upstreams:
  practice:
    host: 127.0.0.1
    port: {upstream}
    tls: none
    auth: {{user: demo, password_file: password}}
    connections: 4
    limits: [{{messages: {count}, per: {per}}}]
"""
_NUMBER = click.IntRange(1, 1000)


@click.command()
@click.option("--messages", type=_NUMBER, default=60, show_default=True, help="Messages to relay.")
@click.option("--limit", "count", type=_NUMBER, default=10, show_default=True, help="Most in any window.")
@click.option("--per", default="5s", show_default=True, help="Window, e.g. 2s, 1m.")
def demo(messages: int, count: int, per: str) -> int:
    """Watch a relay pace mail through an upstream that cuts off whoever is too fast.

    Takes half a minute and leaves nothing behind.  The exit code is 0 if the upstream
    got every message and refused none.
    """
    try:
        limit = LimitSettings.model_validate({"messages": count, "per": per})
    except ValueError as error:
        raise click.BadParameter("expected a time such as 2s or 1m", param_hint="--per") from error
    try:
        return asyncio.run(Demo(messages, limit, per).run())
    except OSError as error:
        click.echo(f"cannot show the demo: {error}", err=True)
        return os.EX_OSERR


class Demo:
    def __init__(self, messages: int, limit: LimitSettings, per: str) -> None:
        self._messages, self._limit, self._per = messages, limit, per
        self._ideal_ns = (-(-messages // limit.count) - 1) * limit.per_ns
        self._account = PracticeAccount(limit, CUT_OFF_SECONDS * SECOND_NS)
        self._arrived: list[Practised] = []
        self._handed_in = 0
        self._clock = SystemClock()
        self._signals: list[int] = []
        """That came, and end the demo at its next frame."""

    async def run(self) -> int:
        """Return the exit code.  Raises OSError."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._signals.append, number)
        login = Credentials("demo", secrets.token_urlsafe(24))
        address, observer = HostPort("127.0.0.1", 0), self._arrived.append
        upstream = PracticeSmarthost(address, login, self._account, self._clock, observer=observer)
        with tempfile.TemporaryDirectory(prefix="relay-demo-") as name, socket.socket() as reserving:
            # Nobody else gets a bound port; with SO_REUSEADDR the relay may listen on it (socket(7)).
            reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserving.bind(("127.0.0.1", 0))
            port, folder = reserving.getsockname()[1], Path(name)
            await upstream.start()
            (folder / "password").touch(mode=0o600)
            (folder / "password").write_text(login.password)
            (folder / "policy.yaml").write_text(
                _POLICY.format(port=port, upstream=upstream.port, count=self._limit.count, per=self._per)
            )
            click.echo(
                f"A practice upstream allows {plain_words(self._limit)}, and cuts off whoever sends more.\n"
                f"A relay takes {self._messages} messages, as fast as they can be handed over.\n"
                "While it runs you may look at it from another terminal:\n"
                f"  .venv/bin/relay status --policy {printable(folder / 'policy.yaml')}\n"
            )
            handing_in = asyncio.create_task(self._hand_in(port))
            try:
                async with _running_relay(folder) as relay:
                    why_not = await self._watch(relay, handing_in)
            finally:
                handing_in.cancel()
                await upstream.close()
            if why_not:
                log = (folder / "log").read_text("utf-8", errors="replace").splitlines()
                why_not = "\n  ".join([f"{why_not}; the relay said last:", *map(printable, log[-3:])])
        if self._signals:
            click.echo("\ninterrupted; everything was removed", err=True)
            return 128 + self._signals[0]
        return self._conclude(why_not)

    async def _hand_in(self, port: int) -> None:
        smtp = aiosmtplib.SMTP(hostname="127.0.0.1", port=port, start_tls=False)
        while not smtp.is_connected:
            # A relay that never listens is seen by `_watch`.
            with contextlib.suppress(aiosmtplib.SMTPConnectError):
                await smtp.connect()
            await asyncio.sleep(FRAME_SECONDS)
        async with smtp:
            for number in range(self._messages):
                text = f"From: <demo@example.org>\r\nSubject: number {number}\r\n\r\nPaced.\r\n"
                await smtp.sendmail("demo@example.org", [f"reader-{number}@example.com"], text)
                self._handed_in += 1

    async def _watch(self, relay: asyncio.subprocess.Process, handing_in: "asyncio.Task[None]") -> str:
        """Show what the upstream counts until it has everything, or a signal came; return why it has not."""
        latest_ns = self._clock.boottime_ns() + self._ideal_ns + PATIENCE_NS
        frames = 0
        while self._account.relayed < self._messages and not self._signals:
            # Elsewhere than on a terminal, a line each second is enough.
            if sys.stdout.isatty() or frames % 10 == 0:
                self._show()
            frames += 1
            if self._account.refused:
                return f"the upstream refused a message: {self._arrived[-1].reply}"
            if handing_in.done() and (error := handing_in.exception()) is not None:
                return f"the relay did not take a message: {printable(error)}"
            if relay.returncode is not None:
                return f"the relay ended with exit code {relay.returncode}"
            if self._clock.boottime_ns() > latest_ns:
                return "given up: the relay or this machine is too slow"
            await asyncio.sleep(FRAME_SECONDS)
        self._show()
        return ""

    def _show(self) -> None:
        since_ns, count = self._clock.boottime_ns() - self._limit.per_ns, self._limit.count
        used = sum(each.at_ns > since_ns for each in self._arrived)
        bar = "#" * min(BAR_CELLS, -(-used * BAR_CELLS // count))
        line = (
            f"  window {bar:-<{BAR_CELLS}} {used:>2}/{count}"
            f"  waiting {self._handed_in - len(self._arrived):>2}"
            f"  relayed {self._account.relayed:>2}/{self._messages}"
        )
        is_terminal = sys.stdout.isatty()
        click.echo(f"\r\x1b[K{line}" if is_terminal else line, nl=not is_terminal)

    def _conclude(self, why_not: str) -> int:
        account, count = self._account, self._limit.count
        relayed = [each.recipients for each in self._arrived if each.reply.startswith("250")]
        kinds = len(set(relayed))
        verdicts = [
            (f"most in any {self._per}: {account.most} of {count} allowed", account.most <= count),
            (f"refused: {account.refused}", account.refused == 0),
            (f"relayed: {kinds} of {self._messages}", kinds == self._messages),
            (f"relayed twice: {len(relayed) - kinds}", len(relayed) == kinds),
        ]
        click.echo("\nVerdict, by what the upstream counted:")
        for text, is_right in verdicts:
            click.echo(f"  {text:<52} {'ok' if is_right else 'NOT OK'}")
        instants = [each.at_ns for each in self._arrived] or [0]
        taken_s, ideal_s = (max(instants) - min(instants)) / SECOND_NS, self._ideal_ns / SECOND_NS
        click.echo(f"  time: {taken_s:.1f}s from first to last; the ideal is {ideal_s:.1f}s\n")
        if why_not or not all(is_right for _, is_right in verdicts):
            click.echo(f"FAILED: {why_not}")
            return 1
        click.echo(
            f"PASSED\nThe relay stored {self._messages} messages durably and passed them on as fast as its\n"
            "upstream allows and never faster.  That upstream would have refused everything\n"
            f"for {CUT_OFF_SECONDS}s after one too many in any window.\n\n"
            "Next: `make run` starts a relay that waits for your mail, and says what to type."
        )
        return os.EX_OK


@contextlib.asynccontextmanager
async def _running_relay(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "relay", "run", "--policy", str(folder / "policy.yaml")]
        # Ctrl-C reaches the demo alone, which then stops the relay as a service manager would.
        relay = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield relay
    finally:
        with contextlib.suppress(ProcessLookupError):
            relay.terminate()
        try:
            await asyncio.wait_for(relay.wait(), STOP_SECONDS)
        except TimeoutError:
            relay.kill()
            await relay.wait()
