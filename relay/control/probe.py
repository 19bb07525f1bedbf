"""What `relay probe` and `relay login` are put together of, beside a relay that runs or does not.

Guarantees: a connection is reserved in the account's own history, under its lock, where a limit in force
counts connections; no mail is sent.  Does not: take the spool's lock, or talk to the running relay.
"""

import io
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from relay.clock import SystemClock
from relay.control.offline import refuse_strangers
from relay.policy.lane import with_ceilings
from relay.policy.model import Policy
from relay.policy.secrets import NotLoggedIn, SecretError, read_secrets
from relay.policy.shipped import rules_of
from relay.sender.accounts import Accounts
from relay.sender.connections import NoRoomToConnect, open_with_slot
from relay.sender.oauth.account_tokens import AccountTokens
from relay.sender.oauth.consent import Consent, LoginFailed, NoConsentNeeded
from relay.sender.throttle_thread import ThrottleThread
from relay.sender.tls.client_certificates import ClientCertificates
from relay.smtp.reply import Phase
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry
from relay.throttle.file_history import FileHistory
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


class ConsentFailed(Exception):  # noqa: N818 - what became of it
    """There is no new refresh token; the text may be shown."""

    def __init__(self, words: str, code: int) -> None:
        """`code`: as sysexits(3) has it."""
        super().__init__(words)
        self.code = code


class Shown(NamedTuple):
    """How a person is told where to consent."""

    code: Callable[[str, str], None]
    """Gets an address and the code to type there."""
    link: Callable[[str], Awaitable[str]]
    """Gets a link, and returns the address that the browser shows at the end."""


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
    tokens, certificates = AccountTokens(disk, telemetry), ClientCertificates(telemetry.events)
    accounts, steps = Accounts(hostname, tokens, certificates), Steps(tell, clock)
    history = policy.history_path(name)
    exact = Throttle(
        FileHistory(history, disk, clock),
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
    logins = accounts.logins(name, upstream, Judge(rules_of(name, upstream)))
    try:
        connection = await open_with_slot(throttle, logins, clock, lambda _: None, steps.done)
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
        await accounts.close()
    steps.done("quit", "closed")
    return ProbeEnd(is_good=True)


async def log_in(policy: Policy, name: str, shown: Shown) -> Path:
    """Return the file in which the refresh token is now, durable.

    Raises ConsentFailed, SecretError and OSError.
    """
    try:
        consent = Consent(policy.upstreams[name], RealDisk(), SystemClock())
    except NoConsentNeeded as error:
        raise ConsentFailed(str(error), os.EX_CONFIG) from None
    try:
        if consent.has_device_code:
            await consent.by_code(lambda code: shown.code(code.url, code.user_code))
        else:
            await consent.in_browser(shown.link)
    except LoginFailed as failed:
        code = os.EX_TEMPFAIL if failed.may_pass else os.EX_NOPERM
        raise ConsentFailed(str(failed), code) from None
    return consent.path
