"""What `relay probe` is put together of, beside a relay that runs or does not.

Guarantees: a connection is reserved in the account's own history, under its lock, where a limit in force
counts connections; no mail is sent.  Does not: take the spool's lock, or talk to the running relay.
"""

import io
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from relay.clock import SystemClock
from relay.control.offline import refuse_strangers
from relay.policy.lane import with_ceilings
from relay.policy.model import Policy
from relay.policy.secrets import NotLoggedIn, SecretError, read_secrets
from relay.policy.shipped import rules_of
from relay.sender.connections import NoRoomToConnect, open_with_slot
from relay.sender.logins import Logins
from relay.sender.throttle_thread import ThrottleThread
from relay.smtp.reply import Phase
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry
from relay.throttle.opening import open_history
from relay.throttle.throttle import Throttle
from relay.upstream.connection import UpstreamUnavailable
from relay.verdicts.verdict import Judge, Verdict

_STEP_OF = {Phase.CONNECT: "connect", Phase.EHLO: "ehlo", Phase.STARTTLS: "tls", Phase.AUTH: "login"}


class ProbeEnd(NamedTuple):
    is_good: bool
    is_refused: bool = False
    """The upstream, or the token server, refused the account: a person has to act."""
    is_untrusted: bool = False
    """Its certificate was not trusted."""


class Steps:
    """Each step of a probe as it is done: its name, how long it took, what came of it, whether it is good."""

    def __init__(self, tell: Callable[[str, int, str, bool], None], clock: SystemClock) -> None:
        self._tell, self._clock = tell, clock
        self._since_ns = clock.boottime_ns()
        self.is_begun = False
        """A step is done, so that a failure is of the connection and not of the token before it."""

    def done(self, name: str, text: str, *, is_good: bool = True) -> None:
        now_ns = self._clock.boottime_ns()
        self.is_begun = True
        self._tell(name, now_ns - self._since_ns, text, is_good)
        self._since_ns = now_ns


async def probe(policy: Policy, name: str, tell: Callable[[str, int, str, bool], None]) -> ProbeEnd:
    """Resolve, connect, TLS, EHLO, AUTH, QUIT.

    Raises SecretError, HistoryError, and PermissionError where the relay runs as another user.
    """
    refuse_strangers(policy.spool)
    upstream, clock, disk = policy.upstreams[name], SystemClock(), RealDisk()
    try:
        if upstream.auth is not None:
            read_secrets(upstream.auth)
    except NotLoggedIn as error:
        raise SecretError(f"{error}: run `relay login {name}`") from None
    # What the log would say, the steps say.
    telemetry = Telemetry(Events(io.StringIO(), "text", clock), Metrics(clock), clock)
    hostname = policy.hostname or socket.getfqdn()
    logins = Logins(name, upstream, hostname, disk=disk, telemetry=telemetry)
    steps, judge = Steps(tell, clock), Judge(rules_of(name, upstream))
    history = policy.history_of(name)
    exact = Throttle(
        open_history(history, disk, clock),
        with_ceilings(upstream.limits, policy.lanes),
        upstream.guard_ns,
        clock,
        transaction_ns=upstream.max_transaction_ns,
    )
    throttle = ThrottleThread(
        exact,
        clock,
        lambda error: steps.done("history", str(error), is_good=False),
        # Said once, and so not by the next start.
        lambda: steps.done("history", f"begins empty, at {history}: nothing sent before counts"),
    )
    try:
        connection = await open_with_slot(throttle, logins, judge, clock, on_step=steps.done)
        await connection.close()
    except UpstreamUnavailable as unavailable:
        answer = unavailable.answer
        step = _STEP_OF.get(answer.phase, str(answer.phase)) if steps.is_begun else "token"
        steps.done(step, answer.text, is_good=False)
        is_refused = answer.verdict in {Verdict.STOP, Verdict.BOUNCE}
        is_untrusted = isinstance(unavailable.__cause__, ssl.SSLCertVerificationError)
        return ProbeEnd(is_good=False, is_refused=is_refused, is_untrusted=is_untrusted)
    except NoRoomToConnect as full:
        steps.done("slot", f"no room in {full}: nothing was opened", is_good=False)
        return ProbeEnd(is_good=False)
    finally:
        await throttle.close()
        await logins.close()
    steps.done("quit", "closed")
    return ProbeEnd(is_good=True)
