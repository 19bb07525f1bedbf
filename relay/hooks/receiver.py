"""One attempt to tell a receiver: a POST, signed as Standard Webhooks has it, or a program with stdin.

Guarantees: an attempt ends within the hook's timeout, and a program with it; no redirect is followed and
no answer is read but its status; an error names no secret, the URL's path included.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import os
import signal
from subprocess import DEVNULL, PIPE
from typing import NamedTuple

from relay import __version__
from relay.clock import SECOND_NS
from relay.policy.model import HookSettings
from relay.policy.secrets import SecretError, read_signing_key

# No environment of ours: it may hold passwords.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class Notice(NamedTuple):
    notice_id: str
    """The same at each attempt, so that a receiver can drop repeats."""
    content: bytes
    """JSON, the same octets each time: they are signed."""


class Undelivered(Exception):  # noqa: N818 - said of a notice
    """A receiver did not take a notice; the text may be shown."""


async def tell(hook: HookSettings, notice: Notice, wall_ns: int) -> None:
    """Make one attempt.  Raises Undelivered."""
    try:
        async with asyncio.timeout(hook.timeout_ns / SECOND_NS):
            if hook.command is not None:
                await _run(hook.command, notice.content)
            elif hook.url is not None:
                await _post(hook, hook.url, notice, str(wall_ns // SECOND_NS))
    except TimeoutError:
        raise Undelivered(f"no answer within {hook.timeout_ns / SECOND_NS:g}s") from None
    except SecretError as error:
        raise Undelivered(str(error)) from None


async def _post(hook: HookSettings, url: str, notice: Notice, sent_at: str) -> None:
    import aiohttp  # noqa: PLC0415 - a quarter of a second of the start, and few have hooks

    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"relay/{__version__}",
        "webhook-id": notice.notice_id,
        "webhook-timestamp": sent_at,
    }
    if hook.secret_file is not None:
        # Each time: another secret counts from the next attempt on.
        key = await asyncio.to_thread(read_signing_key, hook.secret_file)
        signed = b".".join((notice.notice_id.encode(), sent_at.encode(), notice.content))
        digest = hmac.digest(key, signed, hashlib.sha256)
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=notice.content, headers=headers, allow_redirects=False) as response,
        ):
            status = response.status
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # By its type: its text may have the URL.
        why = getattr(getattr(error, "os_error", None), "strerror", None) or type(error).__name__
        raise Undelivered(f"the request failed: {why}") from None
    if not 200 <= status < 300:
        raise Undelivered(f"HTTP status {status}")


async def _run(command: tuple[str, ...], content: bytes) -> None:
    try:
        program = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=DEVNULL,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        raise Undelivered(f"cannot be run: {error.strerror}") from None
    try:
        await program.communicate(content)
    finally:
        if program.returncode is None:
            # And what it started: all of its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, signal.SIGKILL)
            await program.wait()
    if code := program.returncode or 0:
        raise Undelivered(f"exit status {code}" if code > 0 else f"killed by signal {-code}")
