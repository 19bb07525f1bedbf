"""Reads the secrets and files that a policy names: passwords, users, certificates.

Guarantees: no error quotes such a file.  A password or a private key is refused if another user, except root,
owns it or can read or write it; a group may read a certificate's key.  A device or a FIFO does not block.
Does not: keep anything.  A password is read for each connection, so a new one counts from the next on.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from relay.clock import SECOND_NS
from relay.policy.document import Fault, Steps
from relay.policy.model import SECRETS, Auth, OAuth2, Policy
from relay.policy.named_file import SecretError as SecretError  # noqa: PLC0414 - all of this raises it
from relay.policy.named_file import read_regular
from relay.policy.units import PASSWORDS, DatabaseLogin, Section, written_key

MAX_PASSWORD_BYTES = 4096
MAX_REFRESH_TOKEN_BYTES = 16 << 10
MAX_FILE_BYTES = 8 << 20
"""Of any file; Debian's bundle of authorities has 220 KiB."""
NO_PSYCOPG = "PostgreSQL needs the package psycopg: install relay-smarthost[postgresql]"

USER_NAME = re.compile(r"[^\s:#\x00-\x1f\x7f][^:\x00-\x1f\x7f]{0,254}\Z")
"""A user in a users file: no colon, no control character, and neither `#` nor space in front."""
# At most 1 GiB for one check of argon2id: a users file must not exhaust the memory.
_HASH = re.compile(
    r"\$argon2id\$v=19\$m=(?:[0-9]{1,6}|10[0-4][0-9]{4}),t=0*[1-9][0-9]{0,2},p=0*[1-9][0-9]?"
    r"\$[A-Za-z0-9+/]{11,128}\$[A-Za-z0-9+/]{16,128}\Z"
)
_FIRST_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----\s.*?-----END CERTIFICATE-----", re.DOTALL)
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, repr=False)
class AccountSecrets:
    """The secrets for the login of one account; never shown.  A secret that is not needed is empty."""

    password: str = ""
    client_secret: str = ""
    refresh_token: str = ""
    service_account: str = ""
    """The content of a JSON key file (Google)."""

    def digest(self) -> bytes:
        return hashlib.sha256("\0".join(astuple(self)).encode("utf-8", "surrogateescape")).digest()


class NotLoggedIn(SecretError):  # noqa: N818 - a state of the owner
    """There is no refresh token: the owner has not consented yet (`relay login`)."""


def read_secrets(auth: Auth) -> AccountSecrets:
    """Return the secrets of an account at an upstream.  Raises SecretError."""
    return AccountSecrets(
        password=secret_of(auth, *PASSWORDS),
        client_secret=secret_of(auth.oauth2, *SECRETS),
        refresh_token=secret_of(auth.oauth2, "refresh_token_file"),
        service_account=secret_of(auth.oauth2, "key_file", "key_credential"),
    )


def secret_of(section: Auth | OAuth2 | DatabaseLogin | None, *keys: str) -> str:
    """Return the secret that one of the keys names; empty if none is written.  Raises SecretError."""
    given = ((key, getattr(section, key, None)) for key in keys)
    return next((_READERS[key](value) for key, value in given if value is not None), "")


def read_refresh_token(path: Path) -> str:
    """Return a refresh token.  Raises SecretError; NotLoggedIn if the file does not exist."""
    try:
        return _password(_read_private(path), path, MAX_REFRESH_TOKEN_BYTES)
    except SecretError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise NotLoggedIn("there is no refresh token yet", path) from None
        raise


def read_service_account(path: Path) -> str:
    """Return the JSON of a service account's key, with the fields for a signature.  Raises SecretError."""
    content = _read_private(path)
    with contextlib.suppress(ValueError, RecursionError):
        match json.loads(content):
            case {"client_email": str(), "private_key": str()}:
                return content.decode("utf-8")
    raise SecretError("expected a service account key: JSON with client_email and private_key", path)


def read_password_file(path: Path) -> str:
    """Return the password in a file, without one line end behind it.  Raises SecretError."""
    return _password(_read_private(path), path)


def _password_in_variable(name: str) -> str:
    value = os.environb.get(os.fsencode(name))
    if value is None:
        raise SecretError("this environment variable is not set", name)
    return _password(value, name)


def _credential(name: str) -> Path:
    if (folder := credentials_folder()) is None:
        raise SecretError("$CREDENTIALS_DIRECTORY is not set: not started by systemd with LoadCredential=")
    return folder / name


def credentials_folder() -> Path | None:
    """Return the folder in which systemd gives this process its credentials (LoadCredential=)."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return Path(folder) if folder else None


def _password(content: bytes, named: object, most_bytes: int = MAX_PASSWORD_BYTES) -> str:
    """Return content as a password that SASL can carry.  Raises SecretError."""
    content = content.removesuffix(b"\n").removesuffix(b"\r")
    if not content:
        raise SecretError("it is empty", named)
    if len(content) > most_bytes:
        raise SecretError(f"it is larger than {most_bytes} bytes", named)
    if any(byte in content for byte in b"\0\r\n"):
        raise SecretError("NUL or a line end is inside the password", named)
    return _text(content, named)


def _text(content: bytes, named: object) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise SecretError("it is not UTF-8", named) from None


def read_signing_key(path: Path) -> bytes:
    """Return the key that signs notices.  Raises SecretError.

    Text behind `whsec_` is base64 (Standard Webhooks); any other text is the key itself.
    """
    prefix, whsec, encoded = read_password_file(path).partition("whsec_")
    if prefix or not whsec:
        return (prefix + whsec + encoded).encode()
    with contextlib.suppress(ValueError):
        if key := base64.b64decode(encoded, validate=True):
            return key
    raise SecretError("expected base64 after whsec_", path)


def read_users(path: Path) -> dict[str, str]:
    """Return name to hash.  Empty lines and lines that start with `#` are ignored.  Raises SecretError."""
    users: dict[str, str] = {}
    for number, line in enumerate(_text(_read_private(path), path).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, hashed = line.partition(":")
        if not USER_NAME.match(name) or not _HASH.match(hashed):
            words = "is not NAME:$argon2id$… as `relay hash-password` prints it"
            raise SecretError(f"line {number} {words}", path)
        if name in users:
            raise SecretError(f"line {number} names a user for the second time", path)
        users[name] = hashed
    if not users:
        raise SecretError("it names no user", path)
    return users


def _look_at_program(command: tuple[str, ...]) -> None:
    path = Path(command[0])
    # A hook runs under the effective ids; os.access looks at the real ids by default.
    if not (path.is_file() and os.access(path, os.X_OK, effective_ids=True)):
        raise SecretError("not a program that the relay's user may run", path)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "users_file": read_users,
    "ca_file": lambda path: client_context(path, read_authorities(path)),
    "secret_file": read_signing_key,
    "command": _look_at_program,
    "password_file": read_password_file,
    "password_env": _password_in_variable,
    "password_credential": lambda name: read_password_file(_credential(name)),
    "client_secret_file": read_password_file,
    "client_secret_env": _password_in_variable,
    "client_secret_credential": lambda name: read_password_file(_credential(name)),
    "refresh_token_file": read_refresh_token,
    "key_file": read_service_account,
    "key_credential": lambda name: read_service_account(_credential(name)),
}
"""By key of a policy: the reader of the file or secret that it names.  Readers raise SecretError."""


def unusable(policy: Policy) -> Iterator[Fault]:
    """Yield a fault for each file or variable of a policy that the relay cannot use.

    Without $CREDENTIALS_DIRECTORY no credential is checked: only the service has them.
    """
    for section, at in _sections(policy, ()):
        for key, read in _READERS.items():
            is_readable = credentials_folder() or not key.endswith("_credential")
            if is_readable and (named := getattr(section, key, None)) is not None:
                try:
                    read(named)
                except NotLoggedIn:
                    pass  # `relay login` creates the file
                except SecretError as error:
                    yield Fault(error.words, (*at, key))
        if getattr(section, "postgresql", None) is not None and find_spec("psycopg") is None:
            yield Fault(NO_PSYCOPG, (*at, "postgresql"))
        for key, its_key in ("certificate", "key"), ("tls_certificate", "tls_key"):
            if (chain := getattr(section, key, None)) is not None:
                try:
                    read_key_pair(chain, getattr(section, its_key))
                except SecretError as error:
                    yield Fault(error.words, (*at, key if error.named == chain else its_key))


def _sections(value: object, at: Steps) -> Iterator[tuple[Section, Steps]]:
    """Yield every section in a value, itself included, each with its path."""
    match value:
        case Section():
            yield value, at
            for name, each in value:
                yield from _sections(each, (*at, written_key(type(value), name)))
        case dict():
            for key, each in value.items():
                yield from _sections(each, (*at, key))
        case tuple():
            for index, each in enumerate(value):
                yield from _sections(each, (*at, index))


def read_authorities(path: Path) -> str:
    """Return the text of a PEM file, unchecked.  Raises SecretError."""
    # Bundles contain comments in any encoding.
    return _read(path).decode("ascii", "ignore")


def client_context(path: Path, authorities: str) -> ssl.SSLContext:
    """Return a context that trusts only these authorities.  Raises SecretError, which names `path`."""
    try:
        # With an empty text the context would trust the system's authorities.
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=authorities or "none")
    except (OSError, ValueError):
        raise SecretError("no valid PEM certificate in the file", path) from None


@dataclass(frozen=True, slots=True)
class KeyPair:
    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the first certificate, as `openssl x509 -fingerprint -sha256` prints it."""
        return hashlib.sha256(self._shown()).digest().hex(":").upper()

    @property
    def ends_at_ns(self) -> int | None:
        """When the first certificate expires (wall clock); None if it cannot be parsed."""
        from cryptography import x509  # noqa: PLC0415 - it takes 0.2 s; listener processes do without

        try:
            shown = x509.load_der_x509_certificate(self._shown())
        except ValueError:
            return None
        return int(shown.not_valid_after_utc.timestamp()) * SECOND_NS

    def _shown(self) -> bytes:
        found = _FIRST_CERTIFICATE.search(self.chain)
        return b"" if found is None else ssl.PEM_cert_to_DER_cert(found[0].decode("ascii"))


def read_key_pair(certificate: Path, key: Path | None) -> KeyPair:
    """Return a certificate and its private key.  Raises SecretError, also for a world-readable key."""
    chain = _read(certificate)
    # A group may read the key: daemons on Debian share keys by the group ssl-cert.
    pair = KeyPair(chain, _read(key or certificate, stat.S_IRWXO | stat.S_IWGRP))
    try:
        server_context(pair)
    except OSError:
        words = "no private key for the certificate in the file (expected PEM without a passphrase)"
        raise SecretError(words, key or certificate) from None
    return pair


def server_context(pair: KeyPair) -> ssl.SSLContext:
    """Return a listener's context, TLS 1.2 at least.  Raises OSError if the key is of another certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(pair, context)
    return context


def load_certificate(pair: KeyPair, context: ssl.SSLContext) -> None:
    """Load a certificate into a context.  Raises OSError if the key is of another certificate."""
    # OpenSSL reads paths only.  The files on disk may have changed since they were checked.
    with _in_memory(pair.chain) as chain_path, _in_memory(pair.key) as key_path:
        # The empty passphrase keeps OpenSSL from asking the terminal for one.
        context.load_cert_chain(chain_path, key_path, password="")


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Yield the path of an anonymous file in memory with this content.  Raises OSError."""
    with open(os.memfd_create("relay-pem"), "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
        file.write(content)
        yield f"/proc/self/fd/{file.fileno()}"


def _read_private(path: Path) -> bytes:
    exposed = _OPEN_TO_OTHERS
    if path.parent == credentials_folder():
        # systemd grants a credential to the service's user by an ACL, whose mask shows as group-readable.
        # No other user can enter the folder (systemd #29435).
        exposed &= ~stat.S_IRGRP
    return _read(path, exposed)


def _read(path: Path, exposed: int = 0) -> bytes:
    """Read a file whose mode has none of the bits `exposed`.  Raises SecretError."""
    try:
        content, status = read_regular(path, MAX_FILE_BYTES)
    except OSError as error:
        raise SecretError(f"cannot read it: {error.strerror}", path) from error
    if status.st_mode & exposed:
        mode = stat.S_IMODE(status.st_mode)
        raise SecretError(f"other users can access the file (mode {mode:04o}): run chmod 600", path)
    if exposed and status.st_uid not in (os.geteuid(), 0):
        raise SecretError(f"user {status.st_uid} owns it: chown it to the relay's user or root", path)
    if len(content) > MAX_FILE_BYTES:
        raise SecretError(f"it is larger than {MAX_FILE_BYTES} bytes", path)
    return content
