"""The files that a policy points to: passwords, users, certificates.  Reads the disk.

Guarantees: no error holds what is in such a file, whole or in part; a password or a private key that
others can read is refused, and so is one that somebody else could have put there; a
name that leads to a device or a FIFO does not block.
Does not: keep anything.  A password is read when a connection needs it, so that a new
one counts from the next connection on.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from relay.policy.model import Auth
from relay.policy.named_file import (
    LONGEST_PEM_BYTES,
    Writing,
    open_regular,
    path_of,
    read_descriptor,
    writing,
)
from relay.policy.oauth2 import OAuth2
from relay.policy.units import Unfit
from relay.smtp.validity import ends_at_ns

MAX_PASSWORD_BYTES = 4096
MAX_REFRESH_TOKEN_BYTES = 16 << 10
MAX_SERVICE_ACCOUNT_BYTES = 64 << 10
STANDARD_KEY_PREFIX = "whsec_"
MAX_USERS_BYTES = 1 << 20
MAX_HASH_MEMORY_KIB = 1 << 20
"""Of one argon2id check, 1 GiB: a file of users must not become a memory bomb."""

USER_NAME = re.compile(r"[^\s:#\x00-\x1f\x7f][^:\x00-\x1f\x7f]{0,254}\Z")
"""A user in a users file: no colon and no control character, and no `#` or space in front."""
_HASH = re.compile(
    r"\$argon2id\$v=19\$m=([0-9]{1,10}),t=([0-9]{1,3}),p=([0-9]{1,2})"
    r"\$[A-Za-z0-9+/]{11,128}\$[A-Za-z0-9+/]{16,128}\Z"
)


_FIRST_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----\s.*?-----END CERTIFICATE-----", re.DOTALL)
_PASSPHRASE = re.compile(rb"^(?:-----BEGIN ENCRYPTED PRIVATE KEY-----|Proc-Type: 4,ENCRYPTED)", re.MULTILINE)
_OTHER_KEY = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"})


class SecretError(Unfit):
    """A secret, or another file that a policy names, is not there or not fit for use.

    The text names the file or the variable, and never what is in it.  `plain` does not even
    name it: in a policy that is not good yet, the name may be the password itself.
    """

    def __init__(self, words: str, *named: object) -> None:
        """`words` has `{}` for each file or variable, in their order."""
        super().__init__(words.format(*("it" for _ in named)), words.format(*named))

    def __str__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True, repr=False)
class AccountSecrets:
    """All that an account's login needs and nobody else may know; never shown.  Empty where it needs none."""

    password: str = ""
    client_secret: str = ""
    refresh_token: str = ""
    service_account: str = ""
    """A file of Google's, JSON."""

    def digest(self) -> bytes:
        texts = (self.password, self.client_secret, self.refresh_token, self.service_account)
        # Each with its length: none can end where another begins.
        told = "".join(f"{len(text)}:{text}" for text in texts)
        return hashlib.sha256(told.encode("utf-8", "surrogateescape")).digest()


class NotLoggedIn(SecretError):  # noqa: N818 - what the owner is
    """There is no refresh token yet: nobody has consented."""


class _Source(NamedTuple):
    """Where one secret is; one of the three."""

    path: Path | None
    variable: str | None = None
    credential: str | None = None

    @property
    def file(self) -> Path | None:
        """Return the file that holds it, if one does.  Raises SecretError."""
        return _credential(self.credential) if self.credential is not None else self.path

    def read(self) -> str:
        if self.variable is not None:
            return _password_in_variable(self.variable)
        return "" if (path := self.file) is None else read_password_file(path)


def read_secrets(auth: Auth) -> AccountSecrets:
    """Return the secrets of the owner's account at an upstream.  Raises SecretError."""
    if auth.oauth2 is None:
        return AccountSecrets(password=_password_source(auth).read())
    oauth2 = auth.oauth2
    account = _service_account_path(oauth2)
    return AccountSecrets(
        client_secret=_client_secret_source(oauth2).read(),
        refresh_token=""
        if oauth2.refresh_token_file is None
        else read_refresh_token(oauth2.refresh_token_file),
        service_account="" if account is None else read_service_account(account),
    )


def read_client_secret(oauth2: OAuth2) -> str:
    """Return nothing for a public client.  Raises SecretError."""
    return _client_secret_source(oauth2).read()


def read_refresh_token(path: Path) -> str:
    """Return a refresh token.  Raises SecretError, and NotLoggedIn where there is no such file."""
    try:
        content = _read_private(path, MAX_REFRESH_TOKEN_BYTES)
    except SecretError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise NotLoggedIn("there is no refresh token yet ({})", path) from None
        raise
    return _password(content, str(path), MAX_REFRESH_TOKEN_BYTES)


def read_service_account(path: Path) -> str:
    """Return a service account's key file, which has what a signature needs.  Raises SecretError."""
    content = _read_private(path, MAX_SERVICE_ACCOUNT_BYTES)
    try:
        account = json.loads(content)
    except (ValueError, RecursionError):
        raise SecretError("{} is not the JSON file of a service account's key", path) from None
    needed = ("client_email", "private_key")
    if not isinstance(account, dict) or any(not isinstance(account.get(key), str) for key in needed):
        raise SecretError("{} is not a service account's key: it lacks client_email or private_key", path)
    return content.decode("utf-8")


def _password_source(auth: Auth) -> _Source:
    return _Source(auth.password_file, auth.password_env, auth.password_credential)


def _client_secret_source(oauth2: OAuth2) -> _Source:
    return _Source(oauth2.client_secret_file, oauth2.client_secret_env, oauth2.client_secret_credential)


def _service_account_path(oauth2: OAuth2) -> Path | None:
    return _Source(oauth2.key_file, credential=oauth2.key_credential).file


def _secret_files(auth: Auth) -> list[Path]:
    if auth.oauth2 is None:
        files = [_password_source(auth).file]
    else:
        # Nobody writes a refresh token in place: `relay login` and the relay replace the file whole.
        files = [_client_secret_source(auth.oauth2).file, _service_account_path(auth.oauth2)]
    return [path for path in files if path is not None]


def read_password_file(path: Path) -> str:
    """Return the password in a file; one newline at its end is cut.  Raises SecretError."""
    return _password(_read_private(path, MAX_PASSWORD_BYTES), str(path))


def read_signing_key(path: Path) -> bytes:
    """Return the key in a file, which signs notices.  Raises SecretError.

    After `whsec_` it is base64, as Standard Webhooks has it; any other text is the key itself.
    """
    text = read_password_file(path)
    if not text.startswith(STANDARD_KEY_PREFIX):
        return text.encode()
    try:
        key = base64.b64decode(text.removeprefix(STANDARD_KEY_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise SecretError(f"{{}} has no base64 after {STANDARD_KEY_PREFIX}", path)
    return key


def is_being_written(auth: Auth) -> bool:
    """Return whether a program has the file of a secret open for writing.  Raises SecretError."""
    return any(is_open_for_writing(path) for path in _secret_files(auth))


def is_open_for_writing(path: Path) -> bool:
    """Return False too where nobody can tell.  Raises SecretError."""
    with _opened(path) as descriptor:
        return writing(descriptor) is Writing.OPEN


def read_users(path: Path) -> dict[str, str]:
    """Return name to hash, without empty lines and those that start with `#`.  Raises SecretError."""
    try:
        lines = _read_private(path, MAX_USERS_BYTES).decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise SecretError("{} is not UTF-8", path) from None
    users: dict[str, str] = {}
    for number, line in enumerate((line.removesuffix("\r") for line in lines), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, hashed = line.partition(":")
        if not USER_NAME.match(name) or not _is_hash(hashed):
            raise SecretError(
                f"line {number} of {{}} is not NAME:$argon2id$… as `relay hash-password` prints it", path
            )
        if name in users:
            raise SecretError(f"line {number} of {{}} names a user for the second time", path)
        users[name] = hashed
    return users


class FileInspector:
    """The `SurroundingsInspector` of a policy to be put to work.  Every method raises SecretError."""

    def __init__(self, *, is_service: bool = True) -> None:
        """Outside the service only its credentials cannot be seen: systemd gives them to nobody else."""
        self._looks_at_credentials = is_service or has_credentials()

    def password_file(self, path: Path) -> None:
        read_password_file(path)

    def password_env(self, name: str) -> None:
        _password_in_variable(name)

    def password_credential(self, name: str) -> None:
        if self._looks_at_credentials:
            read_password_file(_credential(name))

    def refresh_token_file(self, path: Path) -> None:
        with contextlib.suppress(NotLoggedIn):
            read_refresh_token(path)

    def service_account_file(self, path: Path) -> None:
        read_service_account(path)

    def service_account_credential(self, name: str) -> None:
        if self._looks_at_credentials:
            read_service_account(_credential(name))

    def users_file(self, path: Path) -> None:
        if not read_users(path):
            raise SecretError("{} names no user", path)

    def authorities(self, path: Path) -> None:
        with _opened(path, LONGEST_PEM_BYTES) as descriptor:
            trusting(path, descriptor)

    def signing_key(self, path: Path) -> None:
        read_signing_key(path)

    def program(self, path: Path) -> None:
        with _opened(path):
            # By the ids that it will run under, which need not be those of who asks.
            if not os.access(path, os.X_OK, effective_ids=True):
                raise SecretError("{} is no program that we may run", path)

    def key_pair(self, certificate: Path, key: Path | None) -> None:
        read_key_pair(certificate, key)


def open_authorities(path: Path) -> int:
    """Return a descriptor of a PEM file, not read yet, which the caller closes.  Raises SecretError."""
    return _open_regular(path, LONGEST_PEM_BYTES)


def trusting(path: Path, descriptor: int) -> ssl.SSLContext:
    """Trust no other authorities; `path` is what an error calls the file.  Raises SecretError."""
    try:
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=path_of(descriptor))
    except (OSError, ValueError):
        raise SecretError("{} holds no certificate that can be loaded (PEM)", path) from None


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with its chain, and its private key, in PEM."""

    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str | None:
        """SHA-256 of the certificate that is shown, as `openssl x509 -fingerprint -sha256` prints it."""
        shown = self._shown()
        return None if shown is None else hashlib.sha256(shown).digest().hex(":").upper()

    @property
    def ends_at_ns(self) -> int | None:
        """Wall clock: when the certificate that is shown ends; None where nobody can tell."""
        shown = self._shown()
        return None if shown is None else ends_at_ns(shown)

    def _shown(self) -> bytes | None:
        found = _FIRST_CERTIFICATE.search(self.chain)
        return None if found is None else ssl.PEM_cert_to_DER_cert(found[0].decode("ascii"))


def read_key_pair(certificate: Path, key: Path | None) -> KeyPair:
    """Return a certificate and its private key, which only its owner can read.  Raises SecretError."""
    key_path = key or certificate
    with (
        _opened(certificate, LONGEST_PEM_BYTES) as descriptor,
        _opened(key_path, LONGEST_PEM_BYTES) as key_descriptor,
    ):
        # A group may read it: Debian's ssl-cert group is how several daemons share one.
        _refuse_exposed(key_descriptor, key_path, stat.S_IRWXO | stat.S_IWGRP)
        pair = KeyPair(
            _read_pem(descriptor, certificate),
            _read_pem(key_descriptor, key_path),
        )
        try:
            serving(pair)
        except OSError as error:
            raise SecretError(_why_no_pair(pair, error), key_path, certificate) from None
    return pair


def _read_pem(descriptor: int, path: Path) -> bytes:
    try:
        return read_descriptor(descriptor, LONGEST_PEM_BYTES)
    except OSError as error:
        raise SecretError(f"cannot read {{}}: {error.strerror}", path) from error


def _why_no_pair(pair: KeyPair, error: OSError) -> str:
    if _PASSPHRASE.search(pair.key):
        return (
            "the private key in {} is encrypted: store it without a passphrase (`openssl pkey` decrypts it)"
        )
    if isinstance(error, ssl.SSLError) and error.reason in _OTHER_KEY:
        return "the private key in {} is not that of the certificate in {}"
    return "{} holds no private key of the certificate in {} (PEM, without a passphrase)"


def serving(pair: KeyPair) -> ssl.SSLContext:
    """Return what a listener shows clients.  Raises OSError where the two do not belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    show(pair, context)
    return context


def show(pair: KeyPair, context: ssl.SSLContext) -> None:
    """Have a context show a certificate.  Raises OSError where the two do not belong together."""
    # OpenSSL reads files, and these two are not to be read from their names again.
    with _in_memory(pair.chain) as chain_path, _in_memory(pair.key) as key_path:
        # The empty passphrase keeps OpenSSL from asking the terminal for one.
        context.load_cert_chain(chain_path, key_path, password="")


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Give the name of a file that is on no disk.  Raises OSError."""
    with open(os.memfd_create("relay-pem"), "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
        file.write(content)
        yield path_of(file.fileno())


def has_credentials() -> bool:
    """Return whether this process was given credentials, as systemd does with LoadCredential=."""
    return bool(os.environ.get("CREDENTIALS_DIRECTORY"))


def _credential(name: str) -> Path:
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        raise SecretError("$CREDENTIALS_DIRECTORY is not set: not started by systemd with LoadCredential=")
    return Path(folder) / name


def _password_in_variable(name: str) -> str:
    value = os.environb.get(os.fsencode(name))
    if value is None:
        raise SecretError("{} is not set", f"the environment variable {name}")
    return _password(value, f"the environment variable {name}")


def _password(content: bytes, where: str, most_bytes: int = MAX_PASSWORD_BYTES) -> str:
    """Return content as a password that SASL can carry; `where` is what an error calls it."""
    if len(content) > most_bytes:
        raise SecretError(f"{{}} is longer than {most_bytes} bytes", where)
    content = content.removesuffix(b"\n").removesuffix(b"\r")
    if not content:
        raise SecretError("{} is empty", where)
    if any(byte in content for byte in b"\0\r\n"):
        raise SecretError("{} has NUL or a line end inside the password", where)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise SecretError("{} is not UTF-8", where) from None


def _is_hash(hashed: str) -> bool:
    match = _HASH.match(hashed)
    return (
        match is not None and int(match[1]) <= MAX_HASH_MEMORY_KIB and int(match[2]) > 0 and int(match[3]) > 0
    )


def _read_private(path: Path, most_bytes: int) -> bytes:
    exposed = stat.S_IRWXG | stat.S_IRWXO
    if path.parent == Path(os.environ.get("CREDENTIALS_DIRECTORY") or "/nonexistent"):
        # systemd grants a credential to the service's user by an ACL, and the mask of
        # an ACL shows as group-readable; the folder lets nobody else in.  systemd #29435.
        exposed &= ~stat.S_IRGRP
    with _opened(path) as descriptor:
        try:
            _refuse_exposed(descriptor, path, exposed)
            content = read_descriptor(descriptor, most_bytes)
        except OSError as error:
            raise SecretError(f"cannot read {{}}: {error.strerror}", path) from error
    if len(content) > most_bytes:
        raise SecretError(f"{{}} is larger than {most_bytes} bytes", path)
    return content


@contextlib.contextmanager
def _opened(path: Path, most_bytes: int | None = None) -> Iterator[int]:
    """Give a descriptor of a regular file, and close it.  Raises SecretError."""
    descriptor = _open_regular(path, most_bytes)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_regular(path: Path, most_bytes: int | None = None) -> int:
    try:
        return open_regular(path, most_bytes=most_bytes)
    except IsADirectoryError:
        raise SecretError("{} is not a regular file", path) from None
    except OSError as error:
        raise SecretError(f"cannot open {{}}: {error.strerror}", path) from error
    except ValueError:
        raise SecretError("cannot open {}: not a path", path) from None


def _refuse_exposed(descriptor: int, path: Path, exposed: int) -> None:
    """Raise SecretError if an open file has a mode bit that it must not have, or a foreign owner."""
    # On the descriptor, not on the name: what was checked is what is read.
    status = os.fstat(descriptor)
    if status.st_mode & exposed:
        mode = stat.S_IMODE(status.st_mode)
        raise SecretError(f"{{}} is open to others (mode {mode:04o}); chmod 600 it", path)
    if status.st_uid not in (os.geteuid(), 0):
        raise SecretError(f"{{}} belongs to user {status.st_uid}, neither us nor root", path)
