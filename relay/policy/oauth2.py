"""OAuth2 as a policy states it: how the relay comes to access tokens for an account at an upstream.  Pure.

A grant is how a token is asked for (RFC 6749): by a refresh token that a person's consent gave, by the
credentials of the program itself, or by an assertion that a service account signs (RFC 7523).
Guarantees: an `OAuth2` has all that its grant needs, and nothing that it does not use; `token_url` is
https, or http on this host.
"""

import enum
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from relay.policy.surroundings import (
    PasswordCredential,
    PasswordFile,
    PasswordVariable,
    PolicyPath,
    UnusableSetting,
    broken_rules,
    inspector_of,
)
from relay.policy.units import CredentialName, Section, Text, choice, https_url


class GrantType(enum.StrEnum):
    """How an access token is asked for."""

    REFRESH_TOKEN = "refresh_token"  # noqa: S105 - the name of a grant
    CLIENT_CREDENTIALS = "client_credentials"
    SERVICE_ACCOUNT = "service_account"


class TokenMechanism(enum.StrEnum):
    """A SASL mechanism that takes an access token; AUTO is the one offered, OAUTHBEARER before XOAUTH2."""

    AUTO = "auto"
    XOAUTH2 = "xoauth2"
    OAUTHBEARER = "oauthbearer"


_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}\Z")
_SCOPE = re.compile(r"[!#-\[\]-~]+(?: [!#-\[\]-~]+)*\Z")
_SECRETS = ("client_secret_file", "client_secret_env", "client_secret_credential")
_KEYS = ("key_file", "key_credential")
_USED = {
    GrantType.REFRESH_TOKEN: frozenset(
        {"client_id", *_SECRETS, "refresh_token_file", "device_url", "login_url"}
    ),
    GrantType.CLIENT_CREDENTIALS: frozenset({"client_id", *_SECRETS}),
    GrantType.SERVICE_ACCOUNT: frozenset(_KEYS),
}
"""The keys of each grant, beside those that all have."""


def _tenant(value: object) -> str:
    if isinstance(value, str) and _TENANT.match(value):
        return value
    raise ValueError("expected a tenant: its id, or one of its domains such as example.onmicrosoft.com")


def _scope(value: object) -> str:
    if isinstance(value, str) and _SCOPE.match(value):
        return value
    raise ValueError("expected a scope: words of printable ASCII with one space between them (RFC 6749, 3.3)")


def _server(value: object) -> str:
    return https_url(value, "https://login.example.net/token", "secrets")


def _seen_refresh_token(path: Path, info: ValidationInfo) -> Path:
    if inspector := inspector_of(info):
        inspector.refresh_token_file(path)
    return path


def _seen_key_file(path: Path, info: ValidationInfo) -> Path:
    if inspector := inspector_of(info):
        inspector.service_account_file(path)
    return path


def _seen_key_credential(name: str, info: ValidationInfo) -> str:
    if inspector := inspector_of(info):
        inspector.service_account_credential(name)
    return name


ServerUrl = Annotated[str, BeforeValidator(_server)]


class OAuth2(Section):
    """What takes the place of a password; `provider` fills in the URLs and the scope."""

    grant: Annotated[GrantType, choice(GrantType)]
    client_id: Text | None = None
    """Of the program, as the provider registered it."""
    client_secret_file: PasswordFile | None = None
    """As `password_file`; a public client of the refresh_token grant has none."""
    client_secret_env: PasswordVariable | None = None
    client_secret_credential: PasswordCredential | None = None
    refresh_token_file: Annotated[PolicyPath, AfterValidator(_seen_refresh_token)] | None = None
    """Written by `relay login`, and by the relay whenever the token server rotates it."""
    key_file: Annotated[PolicyPath, AfterValidator(_seen_key_file)] | None = None
    """A service account's key, as Google gives it: JSON."""
    key_credential: Annotated[CredentialName, AfterValidator(_seen_key_credential)] | None = None
    tenant: Annotated[str, BeforeValidator(_tenant)] | None = None
    """Of microsoft365: part of its URLs."""
    token_url: ServerUrl | None = None
    """https, or http on loopback."""
    device_url: ServerUrl | None = None
    """Where `relay login` asks for a code (RFC 8628)."""
    login_url: ServerUrl | None = None
    """Where a person consents in a browser, if `relay login` has no device_url."""
    scope: Annotated[str, BeforeValidator(_scope)] | None = None
    mechanism: Annotated[
        Literal[TokenMechanism.AUTO, TokenMechanism.XOAUTH2, TokenMechanism.OAUTHBEARER],
        choice(TokenMechanism),
    ] = Field(default=TokenMechanism.AUTO, validate_default=True)

    @model_validator(mode="after")
    def _grant_has_what_it_needs(self) -> "OAuth2":
        rules = [*self._missing(), *self._unused()]
        secrets = self._given(*_SECRETS)
        if len(secrets) > 1:
            rules.append(UnusableSetting(f"expected one secret, got {' and '.join(secrets)}", (secrets[-1],)))
        if rules:
            raise broken_rules(rules)
        return self

    def _given(self, *keys: str) -> list[str]:
        return [key for key in keys if getattr(self, key) is not None]

    def _missing(self) -> list[UnusableSetting]:
        needed: dict[str, bool] = {}
        match self.grant:
            case GrantType.REFRESH_TOKEN:
                needed = {"client_id": True, "refresh_token_file": True}
            case GrantType.CLIENT_CREDENTIALS:
                needed = {"client_id": True}
                if not self._given(*_SECRETS):
                    needed[" or ".join(_SECRETS)] = False
            case GrantType.SERVICE_ACCOUNT:
                if len(self._given(*_KEYS)) != 1:
                    needed["one of key_file and key_credential"] = False
        lacking = [words for words, is_key in needed.items() if not is_key or getattr(self, words) is None]
        rules = [UnusableSetting(f"grant {self.grant} needs {words}", ("grant",)) for words in lacking]
        if self.token_url is None and self.grant is not GrantType.SERVICE_ACCOUNT:
            words = "token_url is needed; a provider fills it in, and microsoft365 needs tenant for that"
            rules.append(UnusableSetting(words, ()))
        if self.scope is None and self.grant is not GrantType.REFRESH_TOKEN:
            rules.append(
                UnusableSetting(f"grant {self.grant} needs scope; a provider fills it in", ("grant",))
            )
        return rules

    def _unused(self) -> list[UnusableSetting]:
        of_grants = frozenset().union(*_USED.values()) - _USED[self.grant]
        # What a provider fills in is not the owner's word.
        unused = self._given(*sorted(of_grants - {"device_url", "login_url"}))
        return [UnusableSetting(f"grant {self.grant} does not use it", (key,)) for key in unused]
