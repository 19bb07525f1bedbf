"""What an upstream is shown and where connections come from, in a policy: faults, and where they are."""

from pathlib import Path

import pytest

from relay.policy.faults import PolicyError
from relay.policy.model import Mechanism
from relay.policy.source import read_policy
from tests.unit.policy.certificates import CERTIFICATE, KEY, KEY_WITH_PASSPHRASE, OTHER_KEY
from tests.unit.policy.examples import with_upstream


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys = {
        "key.pem": KEY,
        "locked.pem": KEY_WITH_PASSPHRASE,
        "other.pem": OTHER_KEY,
        "both.pem": CERTIFICATE + KEY,
    }
    for name, text in {"cert.pem": CERTIFICATE, **keys}.items():
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    return tmp_path


def fault(folder: Path, *lines: str) -> str:
    path = folder / "policy.yaml"
    path.write_text(with_upstream("host: smtp.example.net", *lines))
    with pytest.raises(PolicyError) as caught:
        read_policy(path)
    (found,) = caught.value.errors
    return str(found).removeprefix(f"{path}:")


@pytest.mark.parametrize(
    ("lines", "place", "words"),
    [
        (("tls_key: key.pem",), "8:14: upstreams.isp.tls_key", "of no use without a certificate"),
        (("tls_certificate: cert.pem",), "8:22: upstreams.isp.tls_certificate", "no private key"),
        (("tls_certificate: gone.pem", "tls_key: key.pem"), "8:22: upstreams.isp.tls_certificate", "No such"),
        (("tls_certificate: cert.pem", "tls_key: locked.pem"), "9:14: upstreams.isp.tls_key", "is encrypted"),
        (("tls_certificate: cert.pem", "tls_key: other.pem"), "9:14: upstreams.isp.tls_key", "not that of"),
        (("tls: none", "tls_certificate: both.pem"), "9:22: upstreams.isp.tls_certificate", "tls is none"),
    ],
)  # fmt: skip
def test_a_pair_that_cannot_be_used_is_told_with_its_place(
    folder: Path, lines: tuple[str, ...], place: str, words: str
) -> None:
    found = fault(folder, *lines)

    assert found.startswith(place)
    assert words in found
    assert "BEGIN" not in found


def test_external_needs_a_certificate_and_no_password(folder: Path) -> None:
    external = "auth: {user: u, mechanism: external}"
    path = folder / "policy.yaml"
    path.write_text(with_upstream("host: smtp.example.net", external, "tls_certificate: both.pem"))
    auth = read_policy(path).upstreams["isp"].auth
    assert auth is not None
    assert auth.mechanism is Mechanism.EXTERNAL

    assert "so it needs tls_certificate" in fault(folder, external)
    (folder / "password").touch(0o600)
    (folder / "password").write_text("secret")
    with_password = "auth: {user: u, mechanism: external, password_file: password}"
    assert "password_file is of no use" in fault(folder, with_password, "tls_certificate: both.pem")
    assert "expected one of password_file" in fault(folder, "auth: {user: u, mechanism: plain}")
