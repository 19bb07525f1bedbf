"""The keys of a policy that name a PostgreSQL database and the relay's login there.  Pure.

Guarantees: no URL contains a password or a parameter that would weaken TLS.
Does not: connect to the database, or check its tables (`relay database check` does).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator

from relay.policy.document import Fault
from relay.policy.units import CredentialName, PolicyPath, Section, VariableName

_URL = re.compile(
    r"postgres(?:ql)?://(?:[^\s:@/?#]+@)?[A-Za-z0-9._:,\[\]-]*/[^\s/?#]+"
    r"(?:\?(?:host|sslcert|sslkey)=[^\s&#]+(?:&(?:host|sslcert|sslkey)=[^\s&#]+)*)?\Z"
)
PASSWORDS = ("password_file", "password_env", "password_credential")


def is_database_url(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("postgresql://", "postgres://"))


def _database_url(value: str) -> str:
    if not _URL.match(value):
        raise ValueError(
            "expected a URL such as postgresql://relay@db.example.net/relay, without a password and with no "
            "parameters but host, sslcert and sslkey"
        )
    return value


DatabaseUrl = Annotated[str, AfterValidator(_database_url)]


class PasswordKeys(Section):
    password_file: PolicyPath | None = None
    password_env: VariableName | None = None
    password_credential: CredentialName | None = None
    """The name of a file in `$CREDENTIALS_DIRECTORY` (systemd LoadCredential=)."""


class DatabaseLogin(PasswordKeys):
    """The keys of the spool and of a history in a database.  A policy may write the URL alone."""

    postgresql: DatabaseUrl | None = None
    ca_file: PolicyPath | None = None

    def faults(self) -> Iterator[Fault]:
        yield from self.at_most_one(PASSWORDS, "password")
        if self.postgresql is None:
            for key in self.given([*PASSWORDS, "ca_file"]):
                yield Fault("this key needs postgresql", (key,))


class HistorySettings(DatabaseLogin):
    path: PolicyPath | None = None

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if (self.path is None) == (self.postgresql is None):
            yield Fault("expected either path or postgresql")


def history_settings(value: object) -> object:
    """Expand a plain path or URL to a mapping."""
    if value is None or isinstance(value, Mapping | HistorySettings):
        return value
    return {"postgresql" if is_database_url(value) else "path": value}
