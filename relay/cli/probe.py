"""`relay probe`: log in at an upstream, beside a relay that runs, or without one.

Guarantees: a connection is reserved in the account's own history, under its lock, where a limit in force
counts connections; no mail is sent.  Does not: take the spool's lock, or talk to the running relay.
"""

import asyncio
import io
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import click

from relay.cli.options import named_upstream, policy_option, printable
from relay.clock import SECOND_NS, SystemClock
from relay.control.offline import refuse_strangers
from relay.policy.lane import with_ceilings
from relay.policy.model import Policy
from relay.policy.secrets import NotLoggedIn, SecretError, read_secrets
from relay.policy.shipped import rules_of
from relay.policy.source import read_policy
from relay.sender.connections import NoRoomToConnect, open_with_slot
from relay.sender.logins import Logins
from relay.sender.throttle_thread import ThrottleThread
from relay.smtp.reply import Phase
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics, Telemetry
from relay.throttle.opening import open_history
from relay.throttle.throttle import Throttle
from relay.upstream.connection import UpstreamUnavailable
from relay.verdicts.verdict import Judge, Verdict

_STEP_OF = {Phase.CONNECT: "connect", Phase.EHLO: "ehlo", Phase.STARTTLS: "tls", Phase.AUTH: "login"}


@click.command()
@click.argument("upstream")
@policy_option
def probe(policy_path: Path, upstream: str) -> int:
    """Log in at UPSTREAM, and tell each step with its time; no mail is sent.

    A connection is charged where limits count connections.  Exit codes: 0 where all went well, 75 to try
    later, 77 if the account was refused, 78 for a fault in the policy, a secret or the certificate.  Works
    beside a relay that runs, and without one.
    """
    policy = read_policy(policy_path)
    named_upstream(policy, upstream)
    return asyncio.run(probed(policy, upstream, click.echo))


async def probed(policy: Policy, name: str, echo: Callable[[str], object]) -> int:
    """Resolve, connect, TLS, EHLO, AUTH, QUIT; return the exit code.

    Raises SecretError, HistoryError, and PermissionError where the relay runs as another user.
    """
    refuse_strangers(policy.spool)
    upstream, clock, disk = policy.upstreams[name], SystemClock(), RealDisk()
    try:
        if upstream.auth is not None:
            read_secrets(upstream.auth)
    except NotLoggedIn as error:
        raise SecretError(f"{error}: run `relay login {name}`") from None
    since_ns, told = clock.boottime_ns(), list[str]()

    def step(step: str, text: str, *, is_good: bool = True) -> None:
        nonlocal since_ns
        took_ns, since_ns = clock.boottime_ns() - since_ns, clock.boottime_ns()
        told.append(step)
        mark = "" if is_good else "failed: "
        echo(f"{step:<9}{took_ns / SECOND_NS:8.3f} s  {mark}{printable(text)}")

    # What the log would say, the steps say.
    telemetry = Telemetry(Events(io.StringIO(), "text", clock), Metrics(clock), clock)
    logins = Logins(name, upstream, policy.hostname or socket.getfqdn(), disk=disk, telemetry=telemetry)
    history = policy.history_of(name)
    throttle = ThrottleThread(
        Throttle(
            open_history(history, disk, clock),
            with_ceilings(upstream.limits, policy.lanes),
            upstream.guard_ns,
            clock,
            transaction_ns=upstream.max_transaction_ns,
        ),
        clock,
        lambda error: step("history", str(error), is_good=False),
        # Said once, and so not by the next start.
        lambda: step("history", f"begins empty, at {history}: nothing sent before counts"),
    )
    try:
        judge = Judge(rules_of(name, upstream))
        await (await open_with_slot(throttle, logins, judge, clock, on_step=step)).close()
    except UpstreamUnavailable as unavailable:
        answer = unavailable.answer
        # Before any step it is the token that failed, not the connection.
        step(_STEP_OF.get(answer.phase, str(answer.phase)) if told else "token", answer.text, is_good=False)
        if isinstance(unavailable.__cause__, ssl.SSLCertVerificationError):
            return os.EX_CONFIG
        # The upstream, or the token server, refused the account: a person has to act.
        return os.EX_NOPERM if answer.verdict in {Verdict.STOP, Verdict.BOUNCE} else os.EX_TEMPFAIL
    except NoRoomToConnect as full:
        step("slot", f"no room in {full}: nothing was opened", is_good=False)
        return os.EX_TEMPFAIL
    finally:
        await throttle.close()
        await logins.close()
    step("quit", "closed")
    return os.EX_OK
