"""`relay demo`: a relay, an upstream that cuts off whoever exceeds its limit, and a verdict.

The upstream is in this program, so that its counts are at hand; the relay is a program of its own, as
`relay run` starts it.  Everything is on loopback and in a temporary folder, which is removed at the end,
also after SIGINT, SIGTERM and SIGHUP.  The verdict rests on what the upstream counted.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import tempfile
from pathlib import Path

import aiosmtplib
import click

from relay.cli.options import printable
from relay.clock import SECOND_NS, SystemClock
from relay.policy.limits import LimitSettings
from relay.policy.units import HostPort, duration_ns
from relay.practice.account import PracticeAccount
from relay.practice.smarthost import PracticeSmarthost, Practised
from relay.smtp.sasl import Credentials
from relay.throttle.limit import plain_words

CLIENTS = 4
"""Connections over which the mail is handed in."""
CUT_OFF = "30s"
PATIENCE_NS = 30 * SECOND_NS
"""How much longer than the ideal the demo may take before it gives up."""
STOP_SECONDS = 4.0
MOST_MESSAGES = 1000
BAR_CELLS = 24
FRAME_SECONDS = 0.1
LAST_LINES = 3
SENDER = "demo@example.org"
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


class DemoFailed(Exception):  # noqa: N818 - the demo is over, and the text says why
    pass


def _duration(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    try:
        duration_ns(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


_NUMBER = click.IntRange(1, MOST_MESSAGES)


@click.command()
@click.option("--messages", type=_NUMBER, default=60, show_default=True, help="Messages to relay.")
@click.option("--limit", "count", type=_NUMBER, default=10, show_default=True, help="Most in any window.")
@click.option("--per", callback=_duration, default="5s", show_default=True, help="Window, e.g. 2s, 1m.")
def demo(messages: int, count: int, per: str) -> int:
    """Watch a relay pace mail through an upstream that cuts off whoever is too fast.

    Takes half a minute and leaves nothing behind.  The exit code is 0 if the upstream
    got every message and refused none.
    """
    limit = LimitSettings.model_validate({"messages": count, "per": per})
    try:
        return asyncio.run(_until_told(Demo(messages, limit, per)))
    except OSError as error:
        click.echo(f"cannot show the demo: {error}", err=True)
        return os.EX_OSERR


async def _until_told(demo: "Demo") -> int:
    loop, showing = asyncio.get_running_loop(), asyncio.create_task(demo.run())
    told: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        # Once: the clean-up that follows is short, and must not be cut short itself.
        if not told:
            told.append(number)
            showing.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        return await showing
    except asyncio.CancelledError:
        click.echo("\ninterrupted; everything was removed", err=True)
        return 128 + (told or [signal.SIGINT])[0]


class Demo:
    def __init__(self, messages: int, limit: LimitSettings, per: str) -> None:
        self._messages = messages
        self._limit = limit
        self._per = per
        self._ideal_ns = (-(-messages // limit.count) - 1) * limit.per_ns
        self._account = PracticeAccount(limit, duration_ns(CUT_OFF))
        self._arrived: list[Practised] = []
        self._handed_in = 0
        self._clock = SystemClock()

    async def run(self) -> int:
        """Return the exit code.  Raises OSError."""
        password, why_not = secrets.token_urlsafe(24), ""
        address, credentials = HostPort("127.0.0.1", 0), Credentials("demo", password)
        upstream = PracticeSmarthost(
            address, credentials, self._account, self._clock, observer=self._arrived.append
        )
        with tempfile.TemporaryDirectory(prefix="relay-demo-") as name, socket.socket() as reserving:
            # Nobody else gets a bound port; with SO_REUSEADDR the relay may listen on it (socket(7)).
            reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserving.bind(("127.0.0.1", 0))
            port = reserving.getsockname()[1]
            await upstream.start()
            folder = Path(name)
            (folder / "password").touch(mode=0o600)
            (folder / "password").write_text(password)
            (folder / "policy.yaml").write_text(
                _POLICY.format(port=port, upstream=upstream.port, count=self._limit.count, per=self._per)
            )
            click.echo(
                f"A practice upstream allows {plain_words(self._limit)}, and cuts off whoever sends more.\n"
                f"A relay takes {self._messages} messages, as fast as they can be handed over.\n"
                "While it runs you may look at it from another terminal:\n"
                f"  .venv/bin/relay status --policy {printable(folder / 'policy.yaml')}\n"
            )
            relay = await _start_relay(folder)
            handing_in = asyncio.gather(*(self._hand_in(port, first) for first in range(1, CLIENTS + 1)))
            try:
                await self._watch(relay, handing_in)
            except DemoFailed as failure:
                why_not = "\n  ".join([str(failure), *_last_words(folder)])
            finally:
                handing_in.cancel()
                await asyncio.gather(handing_in, return_exceptions=True)
                await _stop_relay(relay)
                await upstream.close()
        return self._conclude(why_not)

    async def _hand_in(self, port: int, first: int) -> None:
        while True:
            try:
                await self._send_each(port, first)
            except aiosmtplib.SMTPConnectError:
                # The relay does not listen yet; one that never does is seen by `_watch`.
                await asyncio.sleep(FRAME_SECONDS)
            else:
                return

    async def _send_each(self, port: int, first: int) -> None:
        smtp = aiosmtplib.SMTP(
            hostname="127.0.0.1", port=port, local_hostname="demo.invalid", start_tls=False
        )
        async with smtp:
            for number in range(first, self._messages + 1, CLIENTS):
                recipient = f"reader-{number}@example.com"
                content = (
                    f"From: <{SENDER}>\r\nTo: <{recipient}>\r\nSubject: number {number}\r\n\r\nPaced.\r\n"
                )
                await smtp.sendmail(SENDER, [recipient], content)
                self._handed_in += 1

    async def _watch(
        self, relay: asyncio.subprocess.Process, handing_in: "asyncio.Future[list[None]]"
    ) -> None:
        """Show what the upstream counts until it has everything.  Raises DemoFailed."""
        latest_ns = self._clock.boottime_ns() + self._ideal_ns + PATIENCE_NS
        turn = 0
        while True:
            is_over = self._account.relayed >= self._messages
            # Elsewhere than on a terminal, a line each second is enough.
            if sys.stdout.isatty() or is_over or turn % 10 == 0:
                self._show()
            turn += 1
            if self._account.refused:
                raise DemoFailed(f"the upstream refused a message: {self._arrived[-1].reply}")
            if handing_in.done() and (error := handing_in.exception()) is not None:
                raise DemoFailed(f"the relay did not take a message: {printable(error)}")
            if relay.returncode is not None:
                raise DemoFailed(f"the relay ended with exit code {relay.returncode}; it said last:")
            if self._clock.boottime_ns() > latest_ns:
                raise DemoFailed("given up: the relay or this machine is too slow")
            if is_over:
                return
            await asyncio.sleep(FRAME_SECONDS)

    def _show(self) -> None:
        now_ns, count = self._clock.boottime_ns(), self._limit.count
        used = sum(each.at_ns > now_ns - self._limit.per_ns for each in self._arrived)
        cells = min(BAR_CELLS, -(-used * BAR_CELLS // count))
        full, empty = ("█", "░") if (sys.stdout.encoding or "").lower() == "utf-8" else ("#", "-")
        line = (
            f"  window {full * cells}{empty * (BAR_CELLS - cells)} {used:>2}/{count}"
            f"  waiting {self._handed_in - len(self._arrived):>2}"
            f"  relayed {self._account.relayed:>2}/{self._messages}"
        )
        is_terminal = sys.stdout.isatty()
        click.echo(f"\r\x1b[K{line}" if is_terminal else line, nl=not is_terminal)

    def _conclude(self, why_not: str) -> int:
        account, instants = self._account, [each.at_ns for each in self._arrived]
        relayed = [each.recipients for each in self._arrived if each.reply.startswith("250")]
        kinds, count = len(set(relayed)), self._limit.count
        verdicts = [
            (f"most in any {self._per}: {account.most} of {count} allowed", account.most <= count),
            (f"refused: {account.refused}", account.refused == 0),
            (f"relayed: {kinds} of {self._messages}", kinds == self._messages),
            (f"relayed twice: {len(relayed) - kinds}", len(relayed) == kinds),
        ]
        click.echo("\nVerdict, by what the upstream counted:")
        for text, is_right in verdicts:
            click.echo(f"  {text:<52} {'ok' if is_right else 'NOT OK'}")
        taken_s = (max(instants, default=0) - min(instants, default=0)) / SECOND_NS
        click.echo(
            f"  time: {taken_s:.1f}s from first to last; the ideal is {self._ideal_ns / SECOND_NS:.1f}s\n"
        )
        if why_not or not all(is_right for _, is_right in verdicts):
            click.echo(f"FAILED: {why_not}")
            return 1
        click.echo(
            f"PASSED\nThe relay stored {self._messages} messages durably and passed them on as fast as its\n"
            "upstream allows and never faster.  That upstream would have refused everything\n"
            f"for {CUT_OFF} after one too many in any window.\n\n"
            "Next: `make run` starts a relay that waits for your mail, and says what to type."
        )
        return os.EX_OK


async def _start_relay(folder: Path) -> asyncio.subprocess.Process:
    with (folder / "log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "relay", "run", "--policy", str(folder / "policy.yaml")),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # A service manager waits for the demo's own signs of life, if for any.
            env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
            # Ctrl-C reaches the demo alone, which then stops the relay as a service manager would.
            start_new_session=True,
        )


async def _stop_relay(relay: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        relay.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await relay.wait()
    except TimeoutError:
        relay.kill()
        await relay.wait()


def _last_words(folder: Path) -> list[str]:
    log = (folder / "log").read_text("utf-8", errors="replace")
    return [printable(line) for line in log.splitlines()[-LAST_LINES:]]
