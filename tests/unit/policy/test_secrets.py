"""The files that a policy names: only good ones are taken, and no error holds a secret."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.policy.faults import PolicyError
from relay.policy.model import Auth
from relay.policy.secrets import (
    MAX_PASSWORD_BYTES,
    MAX_USERS_BYTES,
    SecretError,
    read_key_pair,
    read_password_file,
    read_secrets,
    read_users,
)
from relay.policy.source import read_policy
from tests.unit.policy.certificates import CERTIFICATE, KEY
from tests.unit.policy.examples import with_listen, with_upstream

HASH = "$argon2id$v=19$m=65536,t=3,p=4$jIcci2PiCMikXE4ZYW81bQ$2nkiZwxsrjDshsH1pjZKBus0P+ux3XmRaaaVDsOQACU"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: bytes | str, mode: int = 0o600) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return path

    return write_file


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"hunter2", "hunter2"),
        (b"hunter2\n", "hunter2"),
        (b"hunter2\r\n", "hunter2"),
        (b" hunter 2 \n", " hunter 2 "),
        ("pässwörd\n".encode(), "pässwörd"),
        (b"x" * MAX_PASSWORD_BYTES, "x" * MAX_PASSWORD_BYTES),
    ],
)
def test_one_newline_at_the_end_is_cut_and_nothing_else(write: Write, content: bytes, expected: str) -> None:
    path = write("password", content)
    assert read_secrets(Auth(user="a", password_file=path)).password == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *((b"", "is empty"), (b"\n", "is empty"), (b"hunter2\n\n", "line end")),
        *((b"hunter2\nhunter3", "line end"), (b"hun\rter2", "line end"), (b"hun\0ter2", "NUL")),
        *((b"hunter2\xff", "UTF-8"), (b"hunter2".ljust(MAX_PASSWORD_BYTES + 1), "larger than")),
    ],
)
def test_what_sasl_cannot_carry_is_refused_and_not_shown(write: Write, content: bytes, words: str) -> None:
    path = write("password", content)
    with pytest.raises(SecretError, match=words) as caught:
        read_password_file(path)
    assert "hun" not in str(caught.value).replace(str(path), "")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o666])
def test_a_password_that_others_can_reach_is_refused(write: Write, mode: int) -> None:
    path = write("password", "hunter2", mode)
    with pytest.raises(SecretError, match=f"mode {mode:04o}"):
        read_password_file(path)


def test_a_password_of_a_foreign_owner_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("password", "hunter2")
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(SecretError, match="neither us nor root"):
        read_password_file(path)


def test_only_a_regular_file_is_read_and_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/null")):
        with pytest.raises(SecretError, match="is not a regular file"):
            read_password_file(path)


def test_a_password_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    auth = Auth(user="a", password_env="ISP_PASSWORD")
    monkeypatch.setenv("ISP_PASSWORD", "hunter2\n")
    assert read_secrets(auth).password == "hunter2"
    monkeypatch.setenv("ISP_PASSWORD", "")
    with pytest.raises(SecretError, match="ISP_PASSWORD: it is empty"):
        read_secrets(auth)
    monkeypatch.delenv("ISP_PASSWORD")
    with pytest.raises(SecretError, match="not set"):
        read_secrets(auth)


def test_users_are_read_by_line(write: Write) -> None:
    path = write("users", f"# who may relay\n\nann:{HASH}\r\nbob@example.net:{HASH}\n  \n")
    assert read_users(path) == {"ann": HASH, "bob@example.net": HASH}


@pytest.mark.parametrize(
    "line",
    [
        *("ann", "ann:", "ann:hunter2", f":{HASH}", f" ann:{HASH}", f"ann: {HASH}", f"ann:{HASH}:x"),
        *(f"a\tb:{HASH}", f"ann:{HASH.replace('argon2id', 'argon2i')}"),
        *(f"ann:{HASH.replace('m=65536', 'm=99999999')}", f"ann:{HASH.replace('t=3', 't=0')}"),
        *(f"ann:{HASH.replace('p=4', 'p=0')}", f"ann:{HASH[:-30]}"),
    ],
)
def test_a_line_that_is_no_user_is_named_and_not_shown(write: Write, line: str) -> None:
    path = write("users", f"bob:{HASH}\n{line}\n")
    with pytest.raises(SecretError, match=f"{path}: line 2") as caught:
        read_users(path)
    assert "hunter2" not in str(caught.value)
    assert "jIcci2" not in str(caught.value)


def test_a_users_file_is_private_and_bounded(write: Write) -> None:
    for path, words in (
        (write("open", f"ann:{HASH}\n", 0o644), "mode 0644"),
        (write("large", "#" * (MAX_USERS_BYTES + 1)), "larger than"),
        (write("latin", b"\xff\n"), "UTF-8"),
    ):
        with pytest.raises(SecretError, match=words):
            read_users(path)


@given(st.binary(max_size=200))
def test_any_users_file_is_users_or_a_secret_error(content: bytes) -> None:
    descriptor = os.memfd_create("users")
    try:
        os.write(descriptor, content)
        os.fchmod(descriptor, 0o600)
        path = Path(f"/proc/self/fd/{descriptor}")
        try:
            users = read_users(path)
        except SecretError as error:
            assert str(path) in str(error)  # noqa: PT017 - either outcome is right
        else:
            assert all(name and hashed for name, hashed in users.items())
    finally:
        os.close(descriptor)


def test_a_users_file_names_somebody(write: Write) -> None:
    policy = write("policy.yaml", with_listen("address: 127.0.0.1:2525", "users_file: users"))
    write("users", "# nobody\n")
    with pytest.raises(PolicyError, match=r"4:17: listen\[0\].users_file: it names no user"):
        read_policy(policy)


def test_a_file_of_authorities_holds_a_certificate(write: Write) -> None:
    policy = write("policy.yaml", with_upstream("host: smtp.example.net", "ca_file: ca.pem"))
    write("ca.pem", CERTIFICATE, 0o644)
    assert read_policy(policy).upstreams["isp"].ca_file == policy.with_name("ca.pem")
    for content in ("", "hunter2", KEY, CERTIFICATE[:-100]):
        write("ca.pem", content, 0o644)
        with pytest.raises(PolicyError, match="no certificate that can be loaded"):
            read_policy(policy)


def test_a_key_is_private_and_belongs_to_its_certificate(write: Write) -> None:
    certificate = write("cert.pem", CERTIFICATE, 0o644)
    for key in (write("key.pem", KEY), write("shared.pem", KEY, 0o640), write("both.pem", CERTIFICATE + KEY)):
        read_key_pair(certificate, key)
    for key, words in (
        (write("open.pem", KEY, 0o644), "mode 0644"),
        (write("empty.pem", ""), "no private key of the certificate"),
        (write("none.pem", CERTIFICATE), "no private key of the certificate"),
    ):
        with pytest.raises(SecretError, match=words) as caught:
            read_key_pair(certificate, key)
        assert "BEGIN" not in str(caught.value)


def test_no_model_and_no_error_shows_a_secret(write: Write) -> None:
    auth = Auth(user="a", password_file=write("password", "hunter2"))
    assert read_secrets(auth).password == "hunter2"
    assert "hunter2" not in repr(auth) + str(auth) + auth.model_dump_json()


def test_a_credential_of_systemd_may_show_as_group_readable(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = Auth(user="a", password_credential="isp")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(SecretError, match="CREDENTIALS_DIRECTORY is not set"):
        read_secrets(auth)
    path = write("isp", "hunter2", 0o440)
    with pytest.raises(SecretError, match="mode 0440"):
        read_password_file(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_secrets(auth).password == "hunter2"
    path.chmod(0o444)
    with pytest.raises(SecretError, match="mode 0444"):
        read_secrets(auth)
