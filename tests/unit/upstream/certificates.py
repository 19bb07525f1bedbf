"""Makes certificates for tests with the `openssl` program: a CA, those that it signed, and others.

They have no key identifiers, like those of many private authorities.
"""

import ssl
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path

_NEW = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_BARE = ("-addext", "subjectKeyIdentifier=none", "-addext", "authorityKeyIdentifier=none")
_HERE = "DNS:localhost,IP:127.0.0.1"


@dataclass(frozen=True)
class Certificates:
    """PEM files; each `.pem` of a server holds its certificate and its key."""

    ca: Path
    right: Path
    """For localhost and 127.0.0.1."""
    wrong_name: Path
    expired: Path
    self_signed: Path
    """For localhost and 127.0.0.1, not signed by the CA."""


def make_certificates(folder: Path) -> Certificates:
    ca = _self_signed(folder, "ca", "-subj", "/CN=Test CA", *_BARE)
    return Certificates(
        ca.with_suffix(".crt"),
        _signed(folder, "right", _HERE),
        _signed(folder, "wrong_name", "DNS:elsewhere.example"),
        _signed(folder, "expired", _HERE, days="-1"),
        _self_signed(folder, "self", "-subj", "/CN=localhost", "-addext", f"subjectAltName={_HERE}"),
    )


def server_context(pem: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


def outdated_context(pem: Path) -> ssl.SSLContext:
    """Return the context of a server that knows nothing newer than TLS 1.1."""
    context = server_context(pem)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def _signed(folder: Path, name: str, names: str, *, days: str = "30") -> Path:
    """Make a certificate that the CA of the folder signs; return its path."""
    pem, ca = folder / f"{name}.pem", folder / "ca.crt"
    request, extensions = pem.with_suffix(".csr"), pem.with_suffix(".ext")
    _openssl(*_NEW, "-keyout", pem.with_suffix(".key"), "-out", request, "-subj", f"/CN={name}")
    extensions.write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=none\n")
    signing = ("-CA", ca, "-CAkey", ca.with_suffix(".key"), "-CAcreateserial", "-extfile", extensions)
    _openssl("x509", "-req", "-in", request, *signing, "-out", pem.with_suffix(".crt"), "-days", days)
    return _joined(pem)


def _self_signed(folder: Path, name: str, *more: str) -> Path:
    pem = folder / f"{name}.pem"
    made = ("-keyout", pem.with_suffix(".key"), "-out", pem.with_suffix(".crt"), "-days", "30")
    _openssl(*_NEW, "-x509", *made, *more)
    return _joined(pem)


def _joined(pem: Path) -> Path:
    pem.write_bytes(pem.with_suffix(".crt").read_bytes() + pem.with_suffix(".key").read_bytes())
    return pem


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
