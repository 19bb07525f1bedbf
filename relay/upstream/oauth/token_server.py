"""One request to a token server: a form over HTTPS, its answer read and bounded.

Guarantees: it ends within TIMEOUT_SECONDS; the certificate is verified; no redirect is followed, so that no
secret goes anywhere else; at most LARGEST_ANSWER_BYTES and a chunk are read; no text holds what was sent.
"""

import aiohttp

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
    """Return the HTTP status, the answer, and `Retry-After`.  Raises TokenServerUnreachable."""
    try:
        # A session each: a token is good for an hour, a connection would not be kept so long.
        async with (
            aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(TIMEOUT_SECONDS),
                # Some networks need HTTPS_PROXY; what goes in the clear, over loopback, no proxy may see.
                trust_env=request.url.startswith("https:"),
            ) as session,
            session.post(request.url, data=request.form, headers=HEADERS, allow_redirects=False) as response,
        ):
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > LARGEST_ANSWER_BYTES:
                    break
            return response.status, bytes(content), response.headers.get("Retry-After", "")
    except TimeoutError:
        raise TokenServerUnreachable(f"no answer within {TIMEOUT_SECONDS:g} s") from None
    except aiohttp.ClientConnectorCertificateError:
        raise TokenServerUnreachable("its certificate is not trusted") from None
    except aiohttp.ClientConnectorError as error:
        raise TokenServerUnreachable(f"cannot connect: {error.os_error.strerror or 'unknown host'}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # By its type: its text may have what was sent.
        raise TokenServerUnreachable(f"the request failed: {type(error).__name__}") from None
