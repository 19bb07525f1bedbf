"""One attempt to tell a receiver: a POST, signed as Standard Webhooks has it, or a program with stdin.

Guarantees: an attempt ends within the hook's timeout, and a program with it; no redirect is followed and
no answer is read but its status; what went wrong is told without a secret, the URL's path included.
Assumes: the receiver drops a repeat by its id.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import os
import signal

import aiohttp

from relay import __version__
from relay.clock import SECOND_NS, Clock
from relay.hooks.notice import Notice
from relay.policy.hook import HookSettings
from relay.policy.secrets import SecretError, read_signing_key

SIGNATURE_VERSION = "v1"
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Undelivered(Exception):  # noqa: N818 - said of a notice
    """A receiver did not take a notice; the text may be shown."""


class Receiver:
    """Reaches all hooks; belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def tell(self, hook: HookSettings, notice: Notice) -> None:
        """Tell one notice.  Raises Undelivered."""
        try:
            async with asyncio.timeout(hook.timeout_ns / SECOND_NS):
                if hook.command is not None:
                    await _run(hook.command, notice.content)
                elif hook.url is not None:
                    await self._post(hook, hook.url, notice)
        except TimeoutError:
            raise Undelivered(f"no answer within {hook.timeout_ns / SECOND_NS:g}s") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, hook: HookSettings, url: str, notice: Notice) -> None:
        sent_at = str(self._clock.wall_ns() // SECOND_NS)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"relay/{__version__}",
            "webhook-id": notice.notice_id,
            "webhook-timestamp": sent_at,
        }
        if hook.secret_file is not None:
            try:
                # Each time: another secret counts from the next attempt on.
                key = await asyncio.to_thread(read_signing_key, hook.secret_file)
            except SecretError as error:
                raise Undelivered(str(error)) from None
            headers["webhook-signature"] = signature(key, notice, sent_at)
        if self._session is None:
            # A connection each: what a restarted receiver closed is not used again.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True), cookie_jar=aiohttp.DummyCookieJar()
            )
        try:
            async with self._session.post(
                url, data=notice.content, headers=headers, allow_redirects=False
            ) as response:
                status = response.status
        except aiohttp.ClientConnectorCertificateError:
            raise Undelivered("its certificate is not trusted") from None
        except aiohttp.ClientConnectorError as error:
            raise Undelivered(f"cannot connect: {error.os_error.strerror}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # By its type: its text may have the URL.
            raise Undelivered(f"the request failed: {type(error).__name__}") from None
        if not 200 <= status < 300:
            raise Undelivered(f"HTTP status {status}")


def signature(key: bytes, notice: Notice, sent_at: str) -> str:
    """Return the header `webhook-signature` (standardwebhooks.com, "Signature scheme")."""
    signed = b".".join((notice.notice_id.encode(), sent_at.encode(), notice.content))
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return f"{SIGNATURE_VERSION},{base64.b64encode(digest).decode()}"


async def _run(command: tuple[str, ...], content: bytes) -> None:
    """Run a program as we run, but without our environment, which may hold passwords."""
    try:
        program = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
            env={"PATH": PROGRAM_PATH},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Undelivered(f"cannot be run: {getattr(error, 'strerror', None) or 'not a program'}") from None
    try:
        # A program need not read what it gets.
        await program.communicate(content)
    finally:
        if program.returncode is None:
            # And what it started: all of its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, signal.SIGKILL)
            await program.wait()
    if program.returncode != 0:
        raise Undelivered(_ending(program.returncode or 0))


def _ending(code: int) -> str:
    return f"exit status {code}" if code > 0 else f"killed by signal {-code}"
