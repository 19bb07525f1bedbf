"""Certificates for tests, made by the `openssl` program: a CA, what it signed, and what it did not."""

import ssl
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificates:
    """PEM files; each `.pem` of a server holds its certificate and its key."""

    ca: Path
    right: Path
    """For localhost and 127.0.0.1."""
    wrong_name: Path
    expired: Path
    self_signed: Path
    """For localhost and 127.0.0.1, signed by nobody that anybody trusts."""


def make_certificates(folder: Path) -> Certificates:
    """Make them all in a folder."""
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    _openssl("req", "-x509", *_NEW_KEY, "-keyout", ca_key, "-out", ca, "-days", "30", "-subj", "/CN=Test CA")
    here = "DNS:localhost,IP:127.0.0.1"
    return Certificates(
        ca,
        _signed(folder, "right", here, ca=ca),
        _signed(folder, "wrong_name", "DNS:elsewhere.example", ca=ca),
        _signed(folder, "expired", here, ca=ca, days="-1"),
        _self_signed(folder, here),
    )


def server_context(pem: Path) -> ssl.SSLContext:
    """Return the context of a server that shows this certificate."""
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


def _signed(folder: Path, name: str, names: str, *, ca: Path, days: str = "30") -> Path:
    key, request, certificate = folder / f"{name}.key", folder / f"{name}.csr", folder / f"{name}.crt"
    _openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={names}\n")
    _openssl(
        "x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca.with_suffix(".key"), "-CAcreateserial",
        "-out", certificate, "-days", days, "-extfile", extensions,
    )  # fmt: skip
    return _joined(folder / f"{name}.pem", certificate, key)


def _self_signed(folder: Path, names: str) -> Path:
    key, certificate = folder / "self.key", folder / "self.crt"
    _openssl(
        "req", "-x509", *_NEW_KEY, "-keyout", key, "-out", certificate, "-days", "30",
        "-subj", "/CN=localhost", "-addext", f"subjectAltName={names}",
    )  # fmt: skip
    return _joined(folder / "self.pem", certificate, key)


def _joined(pem: Path, certificate: Path, key: Path) -> Path:
    pem.write_bytes(certificate.read_bytes() + key.read_bytes())
    return pem


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def without_key_identifiers(folder: Path) -> tuple[Path, Path]:
    """Return an authority as many private ones are, and what it signed for localhost."""
    ca, bare = (
        folder / "ca.pem",
        ("-addext", "subjectKeyIdentifier=none", "-addext", "authorityKeyIdentifier=none"),
    )
    _openssl(
        "req", "-x509", *_NEW_KEY, "-keyout", folder / "ca.key", "-out", ca, "-days", "30",
        "-subj", "/CN=Old CA", *bare,
    )  # fmt: skip
    return ca, _signed(folder, "right", "DNS:localhost\nauthorityKeyIdentifier=none", ca=ca)
