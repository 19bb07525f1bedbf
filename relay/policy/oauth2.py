"""OAuth2 as a policy states it: how the relay comes to access tokens for an account at an upstream.  Pure.

A grant is how a token is asked for (RFC 6749): by a refresh token that a person's consent gave, by the
credentials of the program itself, or by an assertion that a service account signs (RFC 7523).
Guarantees: an `OAuth2` has all that its grant needs, and nothing that it does not use; `token_url` is
https, or http on this host.
"""

import enum
from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator

from relay.policy.document import Fault
from relay.policy.units import CredentialName, PolicyPath, Section, Text, VariableName, https_url, matching


class GrantType(enum.StrEnum):
    REFRESH_TOKEN = "refresh_token"  # noqa: S105 - the name of a grant
    CLIENT_CREDENTIALS = "client_credentials"
    SERVICE_ACCOUNT = "service_account"


class TokenMechanism(enum.StrEnum):
    """A SASL mechanism that takes an access token; AUTO is the one offered, OAUTHBEARER before XOAUTH2."""

    AUTO = "auto"
    XOAUTH2 = "xoauth2"
    OAUTHBEARER = "oauthbearer"


SECRETS = ("client_secret_file", "client_secret_env", "client_secret_credential")
_KEYS = ("key_file", "key_credential")
_USES = {
    GrantType.REFRESH_TOKEN: ("client_id", *SECRETS, "refresh_token_file"),
    GrantType.CLIENT_CREDENTIALS: ("client_id", *SECRETS),
    GrantType.SERVICE_ACCOUNT: _KEYS,
}
"""The keys of each grant, beside those that all have and those that a provider fills in."""
_NEEDS = {
    GrantType.REFRESH_TOKEN: (("client_id",), ("refresh_token_file",), ("token_url",)),
    GrantType.CLIENT_CREDENTIALS: (("client_id",), SECRETS, ("token_url",), ("scope",)),
    GrantType.SERVICE_ACCOUNT: (_KEYS, ("scope",)),
}
"""Of each of these one key."""
_FILLED_IN = "; a provider fills it in, and microsoft365 needs tenant for that"

ServerUrl = Annotated[
    str, BeforeValidator(lambda value: https_url(value, "https://login.example.net/token", "secrets"))
]
Tenant = Annotated[
    str,
    matching(
        "[A-Za-z0-9][A-Za-z0-9.-]{0,252}",
        "a tenant: its id, or one of its domains such as example.onmicrosoft.com",
    ),
]
TokenScope = Annotated[
    str,
    matching(
        r"[!#-\[\]-~]+(?: [!#-\[\]-~]+)*",
        "a scope: words of printable ASCII with one space between them (RFC 6749, 3.3)",
    ),
]


class OAuth2(Section):
    """What takes the place of a password; `provider` fills in the URLs and the scope."""

    grant: GrantType
    client_id: Text | None = None
    client_secret_file: PolicyPath | None = None
    """A public client of the refresh_token grant has no secret."""
    client_secret_env: VariableName | None = None
    client_secret_credential: CredentialName | None = None
    refresh_token_file: PolicyPath | None = None
    key_file: PolicyPath | None = None
    key_credential: CredentialName | None = None
    tenant: Tenant | None = None
    token_url: ServerUrl | None = None
    device_url: ServerUrl | None = None
    login_url: ServerUrl | None = None
    scope: TokenScope | None = None
    mechanism: TokenMechanism = TokenMechanism.AUTO

    def faults(self) -> Iterator[Fault]:
        for keys in _NEEDS[self.grant]:
            if not self.given(keys):
                hint = _FILLED_IN if keys[0] in ("token_url", "scope") else ""
                yield Fault(f"grant {self.grant} needs {' or '.join(keys)}{hint}", ("grant",))
        for keys in SECRETS, _KEYS:
            if len(given := self.given(keys)) > 1:
                yield Fault(f"expected one secret, got {' and '.join(given)}", (given[-1],))
        for key in self.given(("client_id", *SECRETS, "refresh_token_file", *_KEYS)):
            if key not in _USES[self.grant]:
                yield Fault(f"grant {self.grant} does not use it", (key,))
