"""One request to a token server: a form over HTTPS, its answer read and bounded.

Guarantees: it ends within TIMEOUT_SECONDS; the certificate is verified; no redirect is followed, so that no
secret goes anywhere else; at most LARGEST_ANSWER_BYTES are read; nothing that is told holds what was sent.

aiohttp is loaded by the first request: verbs on the spool of a relay that is down make none, and loading it
takes as long as half of what they do.
"""

import asyncio

from relay import __version__
from relay.upstream.oauth.answers import LARGEST_ANSWER_BYTES
from relay.upstream.oauth.requests import TokenRequest

TIMEOUT_SECONDS = 30.0
HEADERS = {
    "Content-Type": "application/x-www-form-urlencoded",
    "Accept": "application/json",
    "User-Agent": f"relay/{__version__}",
}


class TokenServerUnreachable(Exception):  # noqa: N818 - what the token server is
    """No answer came; the text may be shown."""


async def ask(request: TokenRequest) -> tuple[int, bytes, str]:
    """Return the HTTP status, the answer, and `Retry-After`.  Raises Unreachable."""
    import aiohttp  # noqa: PLC0415 - see above

    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await _post(request)
    except TimeoutError:
        raise TokenServerUnreachable(f"no answer within {TIMEOUT_SECONDS:g} s") from None
    except aiohttp.ClientConnectorCertificateError:
        raise TokenServerUnreachable("its certificate is not trusted") from None
    except aiohttp.ClientConnectorError as error:
        raise TokenServerUnreachable(f"cannot connect: {error.os_error.strerror or 'unknown host'}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # By its type: its text may have what was sent.
        raise TokenServerUnreachable(f"the request failed: {type(error).__name__}") from None


async def _post(request: TokenRequest) -> tuple[int, bytes, str]:
    import aiohttp  # noqa: PLC0415 - see above

    # A session each: a token is good for an hour, a connection would not be kept so long.  Some networks need
    # HTTPS_PROXY; what goes in the clear, over loopback, no proxy may see.
    uses_proxy = request.url.startswith("https:")
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=uses_proxy) as session,
        session.post(request.url, data=request.form, headers=HEADERS, allow_redirects=False) as response,
    ):
        content = await response.content.read(LARGEST_ANSWER_BYTES + 1)
        while len(content) <= LARGEST_ANSWER_BYTES and (
            more := await response.content.read(LARGEST_ANSWER_BYTES)
        ):
            content += more
        return response.status, content, response.headers.get("Retry-After", "")
