"""The files of a listener: its users, and the certificate that it presents.

Guarantees: `read_listener_files` returns complete users and a certificate with its own key.  `to_order` and
`from_order` hand them to a listener process.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relay.policy.model import Listen
from relay.policy.secrets import KeyPair, read_key_pair, read_users, server_context


@dataclass(frozen=True, slots=True)
class ListenerFiles:
    hashes: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Hash by user name; empty without a users file."""
    pair: KeyPair | None = None
    """None without a certificate."""

    @property
    def fingerprint(self) -> str | None:
        """SHA-256 of the certificate that clients see, as `openssl x509 -fingerprint -sha256` prints it."""
        return None if self.pair is None else self.pair.fingerprint

    def tls(self) -> ssl.SSLContext | None:
        return None if self.pair is None else server_context(self.pair)

    def to_order(self) -> dict[str, Any]:
        """Return the files for JSON, with their secrets."""
        pair = self.pair and [self.pair.chain.decode("latin-1"), self.pair.key.decode("latin-1")]
        return {"hashes": dict(self.hashes), "pair": pair}

    @classmethod
    def from_order(cls, order: dict[str, Any]) -> "ListenerFiles":
        pair = order["pair"] and KeyPair(*(text.encode("latin-1") for text in order["pair"]))
        return cls(order["hashes"], pair)


def read_listener_files(listen: Listen) -> ListenerFiles:
    """Return the files of a listener.  Raises SecretError for an unusable file."""
    hashes = {} if listen.users_file is None else read_users(listen.users_file)
    pair = None if listen.certificate is None else read_key_pair(listen.certificate, listen.key)
    return ListenerFiles(hashes, pair)
