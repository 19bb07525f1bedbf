"""The files that a policy names: good ones are accepted, faults are at their keys, no error has a secret."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.policy.model import Auth
from relay.policy.secrets import (
    MAX_PASSWORD_BYTES,
    NotLoggedIn,
    SecretError,
    read_password_file,
    read_secrets,
    read_users,
)
from relay.policy.source import PolicyError, read_policy
from tests.unit.policy.examples import whole_policy

HASH = "$argon2id$v=19$m=65536,t=3,p=4$jIcci2PiCMikXE4ZYW81bQ$2nkiZwxsrjDshsH1pjZKBus0P+ux3XmRaaaVDsOQACU"
PEM = {path.name: path.read_text() for path in Path(__file__).with_name("pem").iterdir()}
"""A certificate, its key, the same key with a passphrase, and another key; for tests only."""
FILES = {
    **PEM,
    "cut.pem": PEM["cert.pem"][:-100],
    "both.pem": PEM["cert.pem"] + PEM["key.pem"],
    "empty": "",
    "secret": "hunter2",
    "open": "hunter2",
    "signing": "whsec_T0P hunter2",
    "nobody": "# nobody\n",
    "account": '{"client_email": "a"}',
    "deep": "[" * 60_000,
}
FAULTS = """
UPSTREAM | limits: [], ca_file: ¦empty | no certificate that can be loaded
UPSTREAM | limits: [], ca_file: ¦cut.pem | no certificate that can be loaded
UPSTREAM | limits: [], auth: {user: a, password_file: ¦gone} | cannot read it: No such file
UPSTREAM | limits: [], auth: {user: a, password_file: ¦open} | open to others (mode 0644); chmod 600 it
UPSTREAM | limits: [], auth: {user: a, password_env: ¦RELAY_UNSET} | environment variable is not set
OAUTH2 | {grant: service_account, scope: s, key_file: ¦deep} | JSON with client_email
OAUTH2 | {grant: service_account, scope: s, key_file: ¦account} | JSON with client_email
UPSTREAM | limits: [], tls_key: ¦key.pem | of no use without a certificate
UPSTREAM | limits: [], tls_certificate: ¦cert.pem | no private key of the certificate
UPSTREAM | limits: [], tls_certificate: cert.pem, tls_key: ¦locked.pem | without a passphrase
UPSTREAM | limits: [], tls_certificate: cert.pem, tls_key: ¦other.pem | no private key of the certificate
UPSTREAM | limits: [], tls: none, tls_certificate: ¦both.pem | tls is none
UPSTREAM | limits: [], auth: {user: u, mechanism: ¦external} | it needs tls_certificate
LISTEN | {address: '127.0.0.1:0', certificate: cert.pem, key: ¦open} | mode 0644
LISTEN | {address: '127.0.0.1:0', users_file: ¦nobody} | it names no user
LISTEN | {address: '127.0.0.1:0', users_file: ¦secret} | line 1 is not NAME:$argon2id$
LISTEN | {address: '127.0.0.1:0', users_file: ¦open} | mode 0644
REST | notify: [{url: 'https://a.example', secret_file: ¦signing}] | has no base64 after whsec_
REST | notify: [{command: ¦[gone]}] | is no program that we may run
REST | notify: [{command: ¦[secret]}] | is no program that we may run
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: bytes | str, mode: int = 0o600) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return path

    return write_file


def _rows() -> Iterator[list[str]]:
    for row in FAULTS.strip().splitlines():
        yield [part.strip() for part in row.split(" | ")]


@pytest.mark.parametrize(("where", "written", "word"), list(_rows()))
def test_an_unusable_file_is_a_fault_at_its_key(write: Write, where: str, written: str, word: str) -> None:
    for name, content in FILES.items():
        write(name, content, 0o644 if name == "open" else 0o600)
    if where == "OAUTH2":
        where, written = "UPSTREAM", f"limits: [], auth: {{user: a, oauth2: {written}}}"
    before, _, after = whole_policy(**{where: written}).partition("¦")
    path = write("policy.yaml", before + after)

    with pytest.raises(PolicyError) as caught:
        read_policy(path)

    (fault,) = caught.value.errors
    assert (fault.line, fault.column) == (before.count("\n") + 1, len(before) - before.rfind("\n"))
    assert word in fault.message
    for secret in ("hunter2", "T0P", "BEGIN"):
        assert secret not in str(fault)


def test_good_files_are_accepted(write: Write) -> None:
    for name, content in FILES.items():
        write(name, content)
    its = "limits: [], ca_file: cert.pem, tls_certificate: both.pem, auth: {user: u, mechanism: external}"
    write("shared.pem", PEM["key.pem"], 0o640)
    listen = "{address: '127.0.0.1:0', certificate: cert.pem, key: shared.pem}"

    policy = read_policy(write("policy.yaml", whole_policy(UPSTREAM=its, LISTEN=listen)))

    assert policy.upstreams["isp"].ca_file == policy.spool.with_name("cert.pem")


def test_a_password_loses_one_final_newline_and_nothing_else(write: Write) -> None:
    for content, expected in ("hunter2\r\n", "hunter2"), (" hünter 2 ", " hünter 2 "):
        assert read_password_file(write("password", content)) == expected


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        *((b"\n", 0o600, "is empty"), (b"hunter2\n\n", 0o600, "line end"), (b"hun\0ter2", 0o600, "NUL")),
        *((b"hunter2\xff", 0o600, "UTF-8"), (b"hunter2".ljust(MAX_PASSWORD_BYTES + 1), 0o600, "larger than")),
        *((b"hunter2", mode, f"mode {mode:04o}") for mode in (0o640, 0o604, 0o620, 0o601)),
    ],
)
def test_an_unfit_password_file_is_refused_and_its_content_not_shown(
    write: Write, content: bytes, mode: int, words: str
) -> None:
    path = write("password", content, mode)
    with pytest.raises(SecretError, match=words) as caught:
        read_password_file(path)
    assert "hun" not in str(caught.value).replace(str(path), "")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_password_file_of_a_foreign_owner_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path, owner = write("password", "hunter2"), os.geteuid()
    if owner == 0:
        os.chown(path, 12345, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(SecretError, match="neither us nor root"):
        read_password_file(path)


def test_only_a_regular_file_is_read_and_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/null")):
        with pytest.raises(SecretError, match="is not a regular file"):
            read_password_file(path)


def test_a_systemd_credential_may_be_group_readable(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = Auth(user="a", password_credential="isp")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(SecretError, match="CREDENTIALS_DIRECTORY is not set"):
        read_secrets(auth)
    path = write("isp", "hunter2", 0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("ISP_PASSWORD", "hunter2\n")
    for each in auth, Auth(user="a", password_env="ISP_PASSWORD"):
        assert read_secrets(each).password == "hunter2"
        assert "hunter2" not in repr(read_secrets(each))
    path.chmod(0o444)
    with pytest.raises(SecretError, match="mode 0444"):
        read_secrets(auth)


def test_a_missing_refresh_token_is_no_fault_of_the_policy(write: Write) -> None:
    oauth2 = "{grant: refresh_token, client_id: c, refresh_token_file: r}"
    its = f"provider: gmail, auth: {{user: u@gmail.com, oauth2: {oauth2}}}"
    auth = read_policy(write("policy.yaml", whole_policy(UPSTREAM=its))).upstreams["isp"].auth
    assert auth is not None
    with pytest.raises(NotLoggedIn):
        read_secrets(auth)

    write("r", "1//refresh\n")
    assert read_secrets(auth).refresh_token == "1//refresh"


def test_a_malformed_line_of_a_users_file_is_named_by_number_and_not_shown(write: Write) -> None:
    path = write("users", f"# who may relay\n\nann:{HASH}\r\nbob@example.net:{HASH}\n  \n")
    assert read_users(path) == {"ann": HASH, "bob@example.net": HASH}
    for line in (
        *("ann", "ann:", "ann:hunter2", f":{HASH}", f" ann:{HASH}", f"ann: {HASH}", f"ann:{HASH}:x"),
        *(f"a\tb:{HASH}", f"ann:{HASH.replace('argon2id', 'argon2i')}", f"bob:{HASH}", f"ann:{HASH[:-30]}"),
        *(f"ann:{HASH.replace('m=65536', 'm=99999999')}", f"ann:{HASH.replace('t=3', 't=0')}"),
    ):
        path = write("users", f"bob:{HASH}\n{line}\n")
        with pytest.raises(SecretError, match=f"{path}: line 2") as caught:
            read_users(path)
        assert not [secret for secret in ("hunter2", "jIcci2") if secret in str(caught.value)]
