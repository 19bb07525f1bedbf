"""A token server on loopback, as RFC 6749, 7523 and 8628 describe it, with failures that a test asks for.

    with TokenServer() as server:
        server.refresh_token()                  # a person gave consent earlier
        server.failures.append((503, b"", {}))  # replaces the answer to the next request

It knows the grants refresh_token, client_credentials, JWT bearer and device_code. Each refresh rotates the
refresh token: the server then refuses the old one. An upstream asks `is_good` about a token.
"""

import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl

import jwt

CLIENT, SECRET, USER = "relay-client", "client s3cret", "news@example.com"
SERVICE_ACCOUNT = "relay@project.example"
LIFE_SECONDS = 3600
"""How long an access token is good."""
GRANTS = "urn:ietf:params:oauth:grant-type:"


class _Refused(Exception):  # noqa: N818 - RFC 6749, 5.2, calls it an error response
    """Its text is the code of the error."""


@dataclass
class _Token:
    fields: dict[str, Any]
    """The answer that granted it."""
    user: str
    ends_at: float
    was_revoked: bool = False

    @property
    def is_good(self) -> bool:
        return not self.was_revoked and time.monotonic() < self.ends_at


class _Handler(BaseHTTPRequestHandler):
    server: "TokenServer"

    def do_POST(self) -> None:
        octets = self.rfile.read(int(self.headers["Content-Length"]))
        status, content, headers = self.server.answer(self.path, dict(parse_qsl(octets.decode())))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's
        pass


class TokenServer(ThreadingHTTPServer):
    """As a context manager it listens on a free loopback port, in its own thread."""

    def __init__(self, *, secret: str | None = SECRET, public_key: str = "") -> None:
        """Serve one client, which is a public one if `secret` is None."""
        self.secret, self.public_key = secret, public_key
        self.requests: list[dict[str, str]] = []
        """The form of each request for a token."""
        self.failures: deque[tuple[int, bytes, dict[str, str]]] = deque()
        """Status, content and headers that replace the next answers."""
        self.consent: bool | None = None
        """A person's decision on every code shown; None: no decision yet."""
        self.granted: list[_Token] = []
        self._device_codes: set[str] = set()
        super().__init__(("127.0.0.1", 0), _Handler)
        # It polls for the stop every 0.02 s.
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def refresh_token(self) -> str:
        """Return a refresh token that an earlier consent gave."""
        text = f"consent-{len(self.granted)}-0123456789"
        self.granted.append(_Token({"refresh_token": text}, USER, 0.0))
        return text

    def is_good(self, token: Any) -> bool:
        """Return whether an upstream accepts it; `token` has a `name` and a `token`."""
        good = [each for each in self.granted if each.is_good]
        return any((each.user, each.fields["access_token"]) == (token.name, token.token) for each in good)

    def revoke_access(self) -> None:
        """Refuse all access tokens issued so far, although they have not expired."""
        for each in self.granted:
            each.ends_at = 0.0

    def revoke_consent(self) -> None:
        for each in self.granted:
            each.was_revoked = True

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        if path == "/device":
            code = secrets.token_urlsafe(30)
            self._device_codes.add(code)
            told = {"device_code": code, "user_code": "BCDF-GHJK", "expires_in": 900, "interval": 1}
            return 200, json.dumps(told | {"verification_uri": f"{self.url}/activate"}).encode(), {}
        assert path == "/token"
        self.requests.append(form)
        if self.failures:
            return self.failures.popleft()
        try:
            return 200, json.dumps(self._granted(form)).encode(), {}
        except _Refused as refused:
            status = 401 if str(refused) == "invalid_client" else 400
            return status, json.dumps({"error": str(refused)}).encode(), {}

    def _granted(self, form: Mapping[str, str]) -> dict[str, Any]:
        fields = {"access_token": secrets.token_urlsafe(30), "token_type": "Bearer", "scope": "smtp"}
        user, refresh_token = USER, {"refresh_token": secrets.token_urlsafe(30)}
        if form["grant_type"] == f"{GRANTS}jwt-bearer":
            user, refresh_token = self._user_asserted(form["assertion"]), {}
        elif (form["client_id"], form.get("client_secret")) != (CLIENT, self.secret):
            raise _Refused("invalid_client")
        elif not set(form.get("scope", "smtp").split()) <= {"smtp", "offline_access"}:
            raise _Refused("invalid_scope")
        match form["grant_type"]:
            case "refresh_token":
                self._rotate(form["refresh_token"])
            case "client_credentials":
                refresh_token = {}
            case grant if grant == f"{GRANTS}device_code":
                if form["device_code"] not in self._device_codes or not self.consent:
                    raise _Refused("authorization_pending" if self.consent is None else "access_denied")
            case grant if grant != f"{GRANTS}jwt-bearer":
                raise _Refused("unsupported_grant_type")
        answer: dict[str, Any] = fields | refresh_token | {"expires_in": LIFE_SECONDS}
        self.granted.append(_Token(answer, user, time.monotonic() + LIFE_SECONDS))
        return answer

    def _rotate(self, refresh_token: str) -> None:
        for each in self.granted:
            if each.fields.get("refresh_token") == refresh_token and not each.was_revoked:
                # Rotation keeps the access token that was issued with the refresh token.
                each.fields = {key: text for key, text in each.fields.items() if key != "refresh_token"}
                return
        raise _Refused("invalid_grant")

    def _user_asserted(self, assertion: str) -> str:
        claims = jwt.decode(
            assertion,
            self.public_key,
            algorithms=["RS256"],
            audience=f"{self.url}/token",
            issuer=SERVICE_ACCOUNT,
            options={"require": ["exp", "iat", "sub"]},
        )
        if (claims["sub"], claims["scope"]) != (USER, "smtp"):
            raise _Refused("invalid_grant")
        return USER
