"""What `relay probe` and `relay login` are put together of, beside a relay that runs or does not.

Guarantees: the account's own history is what slots are reserved in, under its lock, by the limits in force.
Does not: take the spool's lock, or talk to the running relay.
"""

import io
import os
import socket
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
from relay.sender.oauth.account_tokens import AccountTokens
from relay.sender.oauth.consent import Consent, LoginFailed, NoConsentNeeded
from relay.sender.probe.login import LoginProbe, ProbeEnd, ProbeStep, TestMessage
from relay.sender.throttle_thread import ThrottleThread
from relay.sender.tls.client_certificates import ClientCertificates
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry
from relay.throttle.file_history import FileHistory
from relay.throttle.throttle import Throttle
from relay.verdicts.verdict import Judge


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


async def probe(
    policy: Policy, name: str, mail: tuple[str, str] | None, tell: Callable[[ProbeStep], None]
) -> ProbeEnd:
    """`mail`: the sender and the recipient of a test message.

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
    accounts = Accounts(hostname, tokens, certificates)
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
        lambda error: tell(ProbeStep("history", 0, str(error), is_good=False)),
        # Said once, and so not by the next start.
        lambda: tell(ProbeStep("history", 0, f"begins empty, at {history}: nothing sent before counts")),
    )
    found = LoginProbe(
        policy,
        accounts.logins(name, upstream, Judge(rules_of(name, upstream))),
        throttle,
        clock,
        tell,
    )
    try:
        return await found.run(None if mail is None else TestMessage(*mail), hostname)
    finally:
        await throttle.close()
        await accounts.close()


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
