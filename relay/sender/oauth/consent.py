"""What `relay login` does: a person's consent becomes a refresh token on disk, durable.

Guarantees: the file's folder and owner are looked at before anybody is asked for anything; a token that was
given is written, or the error says that it was not; nothing shown holds a secret.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from relay.clock import Clock
from relay.policy.model import Upstream
from relay.policy.oauth2 import GrantType, OAuth2
from relay.policy.secrets import read_client_secret
from relay.sender.oauth.refresh_token_file import RefreshTokenFile
from relay.spool.disk.durable import Disk
from relay.upstream.oauth.answers import Granted
from relay.upstream.oauth.login import (
    Ask,
    DeviceCode,
    LoginClient,
    LoginFailed,
    begin,
    begin_in_browser,
    finish_in_browser,
    wait_for_consent,
)
from relay.upstream.oauth.token_server import ask as ask_server

__all__ = ["Consent", "LoginFailed", "NoConsentNeeded"]


class NoConsentNeeded(ValueError):  # noqa: N818 - what the account is
    """The account logs in without one; the text says how."""


class Consent:
    """One login.  Raises NoConsentNeeded, SecretError, and OSError where the file could not be written."""

    def __init__(self, upstream: Upstream, disk: Disk, clock: Clock, ask: Ask = ask_server) -> None:
        oauth2 = None if upstream.auth is None else upstream.auth.oauth2
        if oauth2 is None or upstream.auth is None:
            raise NoConsentNeeded("it has no auth.oauth2: there is nothing to consent to")
        if oauth2.grant is not GrantType.REFRESH_TOKEN or oauth2.refresh_token_file is None:
            raise NoConsentNeeded(f"its grant is {oauth2.grant}, which needs nobody's consent here")
        self.path = oauth2.refresh_token_file
        self.user = upstream.auth.user
        _refuse_unwritable(self.path)
        self._oauth2: OAuth2 = oauth2
        secret = read_client_secret(oauth2)
        self._client = LoginClient(oauth2, secret, ask)
        self._file = RefreshTokenFile(self.path, disk)
        self._clock = clock

    @property
    def has_device_code(self) -> bool:
        return self._oauth2.device_url is not None

    async def by_code(self, show: Callable[[DeviceCode], None]) -> None:
        """Wait for a consent by a code.  Raises LoginFailed."""
        code = await begin(self._client, self._clock)
        show(code)
        await self._keep(await wait_for_consent(self._client, code, self._clock, asyncio.sleep))

    async def in_browser(self, show: Callable[[str], Awaitable[str]]) -> None:
        """`show` is given the link, and returns the address that the browser shows at the end.

        Raises LoginFailed.
        """
        login = begin_in_browser(self._oauth2, self.user)
        address = await show(login.url)
        await self._keep(await finish_in_browser(self._client, login, address))

    async def _keep(self, granted: Granted) -> None:
        # Crash here: the consent is lost, and is asked for again.
        await asyncio.to_thread(self._file.write, granted.refresh_token)


def _refuse_unwritable(path: Path) -> None:
    """Raise OSError: a file that root makes, the relay could not read."""
    folder = path.parent
    owner = (path if path.exists() else folder).stat().st_uid
    if owner != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {owner}; run this as that user", str(path))
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, "its folder may not be written", str(path))
