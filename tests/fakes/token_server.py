"""A token server on loopback: authlib's, on Flask, with failures that a test asks for.

    with TokenServer(life_seconds=5) as server:
        server.refresh_token()                  # a person gave consent earlier
        server.failures.append((503, b"", {}))  # replaces the answer to the next request

It knows the grants refresh_token, client_credentials, JWT bearer and device_code. Each refresh rotates the
refresh token: the server then refuses the old one. An upstream in this process asks `is_good` about a token;
an upstream in another program asks `introspection_url` (RFC 7662).
"""

import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, TokenMixin
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant, RefreshTokenGrant
from authlib.oauth2.rfc7523 import JWTBearerGrant
from authlib.oauth2.rfc8628 import DeviceCodeGrant, DeviceCredentialDict
from flask import Flask, Response, jsonify, request
from joserfc.jwk import RSAKey
from werkzeug.serving import WSGIRequestHandler, make_server

CLIENT, SECRET, USER = "relay-client", "client s3cret", "news@example.com"
UPSTREAM, UPSTREAM_SECRET = "upstream", "upstream-s3cret"
"""The credentials for questions about tokens."""
SERVICE_ACCOUNT = "relay@project.example"


class _Client(ClientMixin):  # type: ignore[misc]  # authlib has no types
    """The only client. It is a public client if `secret` is None."""

    def __init__(self, secret: str | None) -> None:
        self.secret = secret

    def get_client_id(self) -> str:
        return CLIENT

    def get_allowed_scope(self, scope: str | None) -> str | None:
        scope = scope or "smtp"  # a signed request has its scope in the claims
        return scope if set(scope.split()) <= {"smtp", "offline_access"} else None

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        del endpoint
        return method == ("none" if self.secret is None else "client_secret_post")

    def check_grant_type(self, grant_type: str) -> bool:
        del grant_type
        return True


@dataclass
class _Token(TokenMixin):  # type: ignore[misc]  # authlib has no types
    fields: dict[str, Any]
    user: str
    ends_at: float
    was_revoked: bool = False

    @property
    def is_good(self) -> bool:
        return not self.was_revoked and time.monotonic() < self.ends_at

    def check_client(self, client: ClientMixin) -> bool:
        return bool(client.get_client_id() == CLIENT)

    def get_scope(self) -> str:
        return str(self.fields["scope"])


class _Refresh(RefreshTokenGrant):  # type: ignore[misc]  # authlib has no types
    INCLUDE_NEW_REFRESH_TOKEN = True
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_post", "none")

    def authenticate_refresh_token(self, refresh_token: str) -> "_Token | None":
        found = [t for t in self.server.holder.granted if t.fields.get("refresh_token") == refresh_token]
        return found[0] if found and not found[0].was_revoked else None

    def authenticate_user(self, refresh_token: "_Token") -> str:
        return refresh_token.user

    def revoke_old_credential(self, refresh_token: "_Token") -> None:
        # Rotation keeps the access token that was issued with the refresh token.
        refresh_token.fields.pop("refresh_token")


class _Credentials(ClientCredentialsGrant):  # type: ignore[misc]  # authlib has no types
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_post",)


class _Assertion(JWTBearerGrant):  # type: ignore[misc]  # authlib has no types
    def resolve_issuer_client(self, issuer: str) -> "_Client | None":
        client: _Client = self.server.holder.client
        return client if issuer == SERVICE_ACCOUNT else None

    def resolve_client_public_key(self, client: "_Client") -> Any:
        del client
        return RSAKey.import_key(self.server.holder.public_key)

    def get_audiences(self) -> list[str]:
        return [f"{self.server.holder.url}/token"]

    def authenticate_user(self, subject: str) -> str:
        return subject

    def has_granted_permission(self, client: "_Client", user: str) -> bool:
        del client
        return user == USER


class _Device(DeviceCodeGrant):  # type: ignore[misc]  # authlib has no types
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_post", "none")

    def query_device_credential(self, device_code: str) -> Any:
        return self.server.holder.devices.get(device_code)

    def query_user_grant(self, user_code: str) -> tuple[str, bool] | None:
        del user_code
        consent = self.server.holder.consent
        return None if consent is None else (USER, consent)

    def should_slow_down(self, credential: Any) -> bool:
        del credential
        return False


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's
        pass


class TokenServer:
    """As a context manager it listens on a free loopback port, in its own thread."""

    def __init__(
        self, *, life_seconds: int = 3600, secret: str | None = SECRET, public_key: Any = None
    ) -> None:
        self.life_seconds = life_seconds
        self.requests: list[dict[str, str]] = []
        """The form of each request."""
        self.failures: deque[tuple[int, bytes, dict[str, str]]] = deque()
        """Status, content and headers that replace the next answers."""
        self.consent: bool | None = None
        """A person's decision on every code shown; None: no decision yet."""
        self.granted: list[_Token] = []
        self.is_taken = True
        """If false, the upstream refuses every token."""
        self.client = _Client(secret)
        self.public_key = public_key
        self.devices: dict[str, Any] = {}
        self._app = Flask("token-server")
        self._server = make_server("127.0.0.1", 0, self._app, threaded=True, request_handler=_Quiet)
        # It polls for the stop every 0.02 s.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._define()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def introspection_url(self) -> str:
        return f"http://{UPSTREAM}:{UPSTREAM_SECRET}@127.0.0.1:{self._server.server_port}/introspect"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def refresh_token(self) -> str:
        """Return a refresh token that an earlier consent gave."""
        text = f"consent-{len(self.granted)}-0123456789"
        self.granted.append(_Token({"refresh_token": text, "scope": "smtp"}, USER, 0.0))
        return text

    def is_good(self, token: Any) -> bool:
        """Return whether an upstream accepts it; `token` has a `name` and a `token`."""
        found = self._found(token.token)
        return found is not None and found.user == token.name

    def _found(self, access_token: str) -> _Token | None:
        """Return the token if an upstream accepts it, or None."""
        good = [each for each in self.granted if self.is_taken and each.is_good]
        return next((each for each in good if each.fields["access_token"] == access_token), None)

    def revoke_access(self) -> None:
        """Refuse all access tokens issued so far, although they have not expired."""
        for each in self.granted:
            each.ends_at = 0.0

    def revoke_consent(self) -> None:
        for each in self.granted:
            each.was_revoked = True

    def _define(self) -> None:
        self._app.config["OAUTH2_REFRESH_TOKEN_GENERATOR"] = True

        def save(token: dict[str, Any], asked: Any) -> None:
            ends_at = time.monotonic() + token["expires_in"]
            self.granted.append(_Token(token, asked.user or USER, ends_at))

        server = AuthorizationServer(self._app, {CLIENT: self.client}.get, save)
        server.holder = self
        server._token_generators["default"].expires_generator = lambda _client, _grant: self.life_seconds
        for grant in (_Refresh, _Credentials, _Assertion, _Device):
            server.register_grant(grant)

        @self._app.post("/token")
        def token() -> Response:
            self.requests.append(dict(request.form))
            if self.failures:
                status, content, headers = self.failures.popleft()
                return Response(content, status=status, headers=headers)
            answer: Response = server.create_token_response()
            return answer

        @self._app.post("/device")
        def device() -> Response:
            code = {"device_code": secrets.token_urlsafe(30), "user_code": "BCDF-GHJK"}
            self.devices[code["device_code"]] = DeviceCredentialDict(request.form.to_dict(), **code)
            code["verification_uri"] = f"{self.url}/activate"
            return jsonify(**code, expires_in=900, interval=1)

        @self._app.post("/introspect")
        def introspect() -> Response:
            asks = request.authorization
            if asks is None:
                return Response(status=503)
            found = self._found(request.form["token"])
            if (asks.username, asks.password) != (UPSTREAM, UPSTREAM_SECRET) or found is None:
                return jsonify(active=False)
            return jsonify(active=True, username=found.user, scope=found.get_scope())
