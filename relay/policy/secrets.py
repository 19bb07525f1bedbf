"""The files that a policy points to: passwords, users, certificates.  Reads the disk.

Guarantees: no error holds a secret, whole or in part; a password or a private key that
others can read is refused, and so is one that somebody else could have put there; a
name that leads to a device or a FIFO does not block.
Does not: keep anything.  A password is read when a connection needs it, so that a new
one counts from the next connection on.
"""

import os
import re
import ssl
import stat
from pathlib import Path

from relay.policy.model import Auth

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


class SecretError(ValueError):
    """A secret, or another file that a policy names, is not there or not fit for use.

    The text names the file or the variable, and never what is in it.
    """


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


def read_users(path: Path) -> dict[str, str]:
    """Return the users of a listener, name to argon2id hash.  Raises SecretError.

    A line is `name:$argon2id$…`; empty lines and lines that start with `#` are skipped.
    """
    try:
        lines = _read_private(path, MAX_USERS_BYTES).decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise SecretError(f"{path} is not UTF-8") from None
    users: dict[str, str] = {}
    for number, line in enumerate((line.removesuffix("\r") for line in lines), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, hashed = line.partition(":")
        if not USER_NAME.match(name) or not _is_hash(hashed):
            raise SecretError(
                f"line {number} of {path} is not NAME:$argon2id$… as `relay hash-password` prints it"
            )
        if name in users:
            raise SecretError(f"line {number} of {path} names a user for the second time")
        users[name] = hashed
    return users


class FileInspector:
    """Looks at what a policy names: the `Inspector` for a policy that is to be put to work.

    Every method raises SecretError.
    """

    def password_file(self, path: Path) -> None:
        """Check a file that holds a password."""
        read_password_file(path)

    def password_env(self, name: str) -> None:
        """Check an environment variable that holds a password."""
        _password_in_variable(name)

    def password_credential(self, name: str) -> None:
        """Check a systemd credential that holds a password."""
        read_password_file(_credential(name))

    def users_file(self, path: Path) -> None:
        """Check a file of users and the hashes of their passwords."""
        if not read_users(path):
            raise SecretError(f"{path} names no user")

    def authorities(self, path: Path) -> None:
        """Check a PEM file of certificates."""
        os.close(_open_regular(path))
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
        except (OSError, ValueError):
            raise SecretError(f"{path} holds no certificate that can be loaded (PEM)") from None

    def key_pair(self, certificate: Path, key: Path | None) -> None:
        """Check that a private key is kept private and belongs to a certificate."""
        key_path = key or certificate
        descriptor = _open_regular(key_path)
        try:
            # A group may read it: Debian's ssl-cert group is how several daemons share one.
            _refuse_exposed(descriptor, key_path, stat.S_IRWXO | stat.S_IWGRP)
        finally:
            os.close(descriptor)
        try:
            # The empty passphrase keeps OpenSSL from asking the terminal for one.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        except (OSError, ValueError):
            raise SecretError(
                f"{key_path} holds no private key of the certificate in {certificate} "
                "(PEM, without a passphrase)"
            ) from None


def _credential(name: str) -> Path:
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        raise SecretError("$CREDENTIALS_DIRECTORY is not set: not started by systemd with LoadCredential=")
    return Path(folder) / name


def _password_in_variable(name: str) -> str:
    value = os.environb.get(os.fsencode(name))
    if value is None:
        raise SecretError(f"the environment variable {name} is not set")
    return _password(value, f"the environment variable {name}")


def _password(content: bytes, where: str) -> str:
    """Return content as a password that SASL can carry; `where` is what an error calls it."""
    if len(content) > MAX_PASSWORD_BYTES:
        raise SecretError(f"{where} is longer than {MAX_PASSWORD_BYTES} bytes")
    content = content.removesuffix(b"\n").removesuffix(b"\r")
    if not content:
        raise SecretError(f"{where} is empty")
    if any(byte in content for byte in b"\0\r\n"):
        raise SecretError(f"{where} has NUL or a line end inside the password")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise SecretError(f"{where} is not UTF-8") from None


def _is_hash(hashed: str) -> bool:
    match = _HASH.match(hashed)
    return (
        match is not None and int(match[1]) <= MAX_HASH_MEMORY_KIB and int(match[2]) > 0 and int(match[3]) > 0
    )


def _read_private(path: Path, most_bytes: int) -> bytes:
    """Return what is in a file that only its owner can read.  Raises SecretError."""
    descriptor = _open_regular(path)
    try:
        exposed = stat.S_IRWXG | stat.S_IRWXO
        if path.parent == Path(os.environ.get("CREDENTIALS_DIRECTORY") or "/nonexistent"):
            # systemd grants a credential to the service's user by an ACL, and the mask of
            # an ACL shows as group-readable; the folder lets nobody else in.  systemd #29435.
            exposed &= ~stat.S_IRGRP
        _refuse_exposed(descriptor, path, exposed)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise SecretError(f"cannot read {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        raise SecretError(f"{path} is larger than {most_bytes} bytes")
    return content


def _open_regular(path: Path) -> int:
    """Return a descriptor of a regular file.  Raises SecretError."""
    try:
        # O_NONBLOCK: a FIFO without a writer must not stop us before fstat tells it apart.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise SecretError(f"cannot open {path}: {error.strerror}") from None
    except ValueError:
        raise SecretError(f"cannot open {path}: not a path") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SecretError(f"{path} is not a regular file")
    return descriptor


def _refuse_exposed(descriptor: int, path: Path, exposed: int) -> None:
    """Raise SecretError if an open file has a mode bit that it must not have, or a foreign owner."""
    # On the descriptor, not on the name: what was checked is what is read.
    status = os.fstat(descriptor)
    if status.st_mode & exposed:
        mode = stat.S_IMODE(status.st_mode)
        raise SecretError(f"{path} is open to others (mode {mode:04o}); chmod 600 it")
    if status.st_uid not in (os.geteuid(), 0):
        raise SecretError(f"{path} belongs to user {status.st_uid}, neither us nor root")
