"""The files that a policy points to: passwords, users, certificates.  Reads the disk.

Guarantees: no error holds what is in such a file, whole or in part; a password or a private key that
others can read is refused, and so is one that somebody else could have put there; a
name that leads to a device or a FIFO does not block.
Does not: keep anything.  A password is read when a connection needs it, so that a new
one counts from the next connection on.
"""

import contextlib
import os
import re
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

from relay.policy.model import Auth
from relay.policy.named_file import (
    LONGEST_PEM_BYTES,
    Writing,
    open_regular,
    path_of,
    read_descriptor,
    writing,
)
from relay.policy.units import Unfit

MAX_PASSWORD_BYTES = 4096
MAX_USERS_BYTES = 1 << 20
MAX_HASH_MEMORY_KIB = 1 << 20
"""Of one argon2id check, 1 GiB: a file of users must not become a memory bomb."""

USER_NAME = re.compile(r"[^\s:#\x00-\x1f\x7f][^:\x00-\x1f\x7f]{0,254}\Z")
"""A user in a users file: no colon and no control character, and no `#` or space in front."""
_HASH = re.compile(
    r"\$argon2id\$v=19\$m=([0-9]{1,10}),t=([0-9]{1,3}),p=([0-9]{1,2})"
    r"\$[A-Za-z0-9+/]{11,128}\$[A-Za-z0-9+/]{16,128}\Z"
)


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


def read_password(auth: Auth) -> str:
    """Return the password of the owner's account at an upstream.  Raises SecretError."""
    if auth.password_file is not None:
        return read_password_file(auth.password_file)
    if auth.password_env is not None:
        return _password_in_variable(auth.password_env)
    return read_password_file(_credential(auth.password_credential or ""))


def read_password_file(path: Path) -> str:
    """Return the password in a file; one newline at its end is cut.  Raises SecretError."""
    return _password(_read_private(path, MAX_PASSWORD_BYTES), str(path))


def is_being_written(auth: Auth) -> bool:
    """Return whether a program has the file of a password open for writing.  Raises SecretError."""
    if auth.password_env is not None:
        return False
    with _opened(auth.password_file or _credential(auth.password_credential or "")) as descriptor:
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

    def password_file(self, path: Path) -> None:
        read_password_file(path)

    def password_env(self, name: str) -> None:
        _password_in_variable(name)

    def password_credential(self, name: str) -> None:
        read_password_file(_credential(name))

    def users_file(self, path: Path) -> None:
        if not read_users(path):
            raise SecretError("{} names no user", path)

    def authorities(self, path: Path) -> None:
        with _opened(path, LONGEST_PEM_BYTES) as descriptor:
            trusting(path, descriptor)

    def key_pair(self, certificate: Path, key: Path | None) -> None:
        load_key_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)


def open_authorities(path: Path) -> int:
    """Return a descriptor of a PEM file, not read yet, which the caller closes.  Raises SecretError."""
    return _open_regular(path, LONGEST_PEM_BYTES)


def trusting(path: Path, descriptor: int) -> ssl.SSLContext:
    """Trust no other authorities; `path` is what an error calls the file.  Raises SecretError."""
    try:
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=path_of(descriptor))
    except (OSError, ValueError):
        raise SecretError("{} holds no certificate that can be loaded (PEM)", path) from None


def load_key_pair(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Use a certificate and its private key, which only its owner can read.  Raises SecretError."""
    key_path = key or certificate
    with (
        _opened(certificate, LONGEST_PEM_BYTES) as descriptor,
        _opened(key_path, LONGEST_PEM_BYTES) as key_descriptor,
    ):
        # A group may read it: Debian's ssl-cert group is how several daemons share one.
        _refuse_exposed(key_descriptor, key_path, stat.S_IRWXO | stat.S_IWGRP)
        try:
            # The empty passphrase keeps OpenSSL from asking the terminal for one.
            context.load_cert_chain(path_of(descriptor), path_of(key_descriptor), password="")
        except OSError:
            words = "{} holds no private key of the certificate in {} (PEM, without a passphrase)"
            raise SecretError(words, key_path, certificate) from None


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


def _password(content: bytes, where: str) -> str:
    """Return content as a password that SASL can carry; `where` is what an error calls it."""
    if len(content) > MAX_PASSWORD_BYTES:
        raise SecretError(f"{{}} is longer than {MAX_PASSWORD_BYTES} bytes", where)
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
