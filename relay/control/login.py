"""What `relay login` does: a person's consent becomes a refresh token on disk, durable.

Guarantees: the file's folder and owner are looked at before anybody is asked for anything; a token that was
given is written, or the error says that it was not; nothing shown holds a secret.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from relay.clock import SystemClock
from relay.policy.model import Policy
from relay.policy.oauth2 import GrantType
from relay.policy.secrets import read_client_secret
from relay.sender.refresh_token_file import RefreshTokenFile
from relay.spool.disk.durable import RealDisk
from relay.upstream.oauth.login import (
    LoginClient,
    LoginFailed,
    begin,
    begin_in_browser,
    finish_in_browser,
    wait_for_consent,
)
from relay.upstream.oauth.token_server import ask


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


async def log_in(policy: Policy, name: str, shown: Shown) -> Path:
    """Return the file in which the refresh token is now, durable.

    Raises ConsentFailed, SecretError, and OSError where the file could not be written.
    """
    auth = policy.upstreams[name].auth
    if auth is None or auth.oauth2 is None:
        raise ConsentFailed("it has no auth.oauth2: there is nothing to consent to", os.EX_CONFIG)
    oauth2, path = auth.oauth2, auth.oauth2.refresh_token_file
    if oauth2.grant is not GrantType.REFRESH_TOKEN or path is None:
        raise ConsentFailed(f"its grant is {oauth2.grant}, which needs nobody's consent here", os.EX_CONFIG)
    _refuse_unwritable(path)
    client, clock = LoginClient(oauth2, read_client_secret(oauth2), ask), SystemClock()
    try:
        if oauth2.device_url is not None:
            code = await begin(client, clock)
            shown.code(code.url, code.user_code)
            granted = await wait_for_consent(client, code, clock, asyncio.sleep)
        else:
            login = begin_in_browser(oauth2, auth.user)
            granted = await finish_in_browser(client, login, await shown.link(login.url))
    except LoginFailed as failed:
        failure = os.EX_TEMPFAIL if failed.may_pass else os.EX_NOPERM
        raise ConsentFailed(str(failed), failure) from None
    # Crash here: the consent is lost, and is asked for again.
    await asyncio.to_thread(RefreshTokenFile(path, RealDisk()).write, granted.refresh_token)
    return path


def _refuse_unwritable(path: Path) -> None:
    """Raise OSError: a file that root makes, the relay could not read."""
    folder = path.parent
    owner = (path if path.exists() else folder).stat().st_uid
    if owner != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {owner}; run this as that user", str(path))
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, "its folder may not be written", str(path))
