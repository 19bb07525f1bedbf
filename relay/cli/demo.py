"""`relay demo`: relays mail through an upstream that cuts off whoever exceeds its limit, and gives a verdict.

The upstream runs in this process, so that its counts are at hand; the relay is a process of its own, started
by `relay run`.  Both use loopback only, and a temporary folder, which is removed at the end, also after
SIGINT, SIGTERM and SIGHUP.  The verdict rests on the upstream's counts.
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
from typing import cast

import aiosmtplib
import click

from relay.cli.options import Failed, duration, printable
from relay.clock import SECOND_NS, SystemClock
from relay.mail.formats import period
from relay.policy.lane import LimitSettings
from relay.policy.units import HostPort
from relay.practice.smarthost import PracticeAccount, PracticeMessage, PracticeSmarthost
from relay.smtp.sasl import Credentials

CUT_OFF_SECONDS = 30
PATIENCE_SECONDS = 30
"""How much longer than the ideal the demo may take before it gives up."""
STOP_SECONDS = 4.0
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
@click.option("--limit", "count", type=_NUMBER, default=10, show_default=True, help="Messages in a window.")
@click.option(
    "--per", "per_ns", default="5s", show_default=True, callback=duration, help="Window, e.g. 2s, 1m."
)
def demo(messages: int, count: int, per_ns: int) -> int:
    """Watch a relay pace mail through an upstream that cuts off whoever is too fast.

    Takes half a minute and leaves nothing behind.  The exit code is 0 if the upstream
    got every message and refused none.
    """
    limit = LimitSettings.model_validate({"messages": count, "per": period(per_ns)})
    try:
        return asyncio.run(_show(messages, limit, period(per_ns)))
    except asyncio.CancelledError:
        raise click.Abort from None
    except OSError as error:
        raise Failed(f"cannot show the demo: {error}", os.EX_OSERR) from error


async def _show(messages: int, limit: LimitSettings, per: str) -> int:
    """Return the exit code.  Raises OSError, and CancelledError after a signal."""
    showing = cast("asyncio.Task[int]", asyncio.current_task())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, showing.cancel)
    login, arrived = Credentials("demo", secrets.token_urlsafe(24)), list[PracticeMessage]()
    account = PracticeAccount(limit, CUT_OFF_SECONDS * SECOND_NS)
    upstream = PracticeSmarthost(
        HostPort("127.0.0.1", 0), login, account, SystemClock(), observer=arrived.append
    )
    with tempfile.TemporaryDirectory(prefix="relay-demo-") as name, socket.socket() as reserving:
        # No other program gets a bound port; SO_REUSEADDR lets the relay listen on it (socket(7)).
        reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserving.bind(("127.0.0.1", 0))
        port, folder = reserving.getsockname()[1], Path(name)
        await upstream.start()
        (folder / "password").touch(mode=0o600)
        (folder / "password").write_text(login.password)
        policy = _POLICY.format(port=port, upstream=upstream.port, count=limit.count, per=per)
        (folder / "policy.yaml").write_text(policy)
        click.echo(
            f"A practice upstream allows {limit.label}, and cuts off whoever sends more.\n"
            f"A relay takes {messages} messages, as fast as they can be handed over.\n"
            "While it runs you may look at it from another terminal:\n"
            f"  .venv/bin/relay status --policy {printable(folder / 'policy.yaml')}\n"
        )
        handing_in = asyncio.create_task(_hand_in(port, messages))
        try:
            async with _running_relay(folder) as relay:
                why_not = await _watch(relay, account, messages)
        finally:
            handing_in.cancel()
            await upstream.close()
        log = (folder / "log").read_text("utf-8", errors="replace").splitlines()
    kinds = len({each.recipients for each in arrived if each.reply.startswith("250")})
    click.echo(
        f"\nThe upstream got {kinds} of {messages} messages, {account.relayed - kinds} of them twice.\n"
        f"It refused {account.refused}.  The most in any {per}: {account.most} of {limit.count} allowed."
    )
    if why_not or account.relayed != kinds or account.most > limit.count:
        told = [f"FAILED: {why_not}; the last log lines of the relay:", *log[-3:]]
        click.echo("\n  ".join(map(printable, told)))
        return 1
    click.echo("PASSED\n\nNext: `make run` starts a relay that waits for mail; the README says what to type.")
    return os.EX_OK


async def _hand_in(port: int, messages: int) -> None:
    smtp = aiosmtplib.SMTP(hostname="127.0.0.1", port=port, start_tls=False)
    while not smtp.is_connected:
        # `_watch` notices a relay that never listens.
        with contextlib.suppress(aiosmtplib.SMTPConnectError):
            await smtp.connect()
        await asyncio.sleep(0.1)
    async with smtp:
        for number in range(messages):
            text = f"From: <demo@example.org>\r\nSubject: number {number}\r\n\r\nPaced.\r\n"
            await smtp.sendmail("demo@example.org", [f"reader-{number}@example.com"], text)


async def _watch(relay: asyncio.subprocess.Process, account: PracticeAccount, messages: int) -> str:
    """Show each second how far the relay is; return why it failed, empty if it relayed everything."""
    ideal_seconds = messages // account.limit.count * account.limit.per_ns // SECOND_NS
    for _ in range(ideal_seconds + PATIENCE_SECONDS):
        bar = "#" * (account.relayed * BAR_CELLS // messages)
        click.echo(f"  relayed {bar:-<{BAR_CELLS}} {account.relayed:>2}/{messages}")
        if account.relayed == messages:
            return ""
        if account.refused:
            return "the upstream refused a message"
        if relay.returncode is not None:
            return f"the relay ended with exit code {relay.returncode}"
        await asyncio.sleep(1)
    return "given up: the relay or this machine is too slow"


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
