"""Certificates for tests: an authority, the certificates that it signs, and contexts of servers with them."""

import ssl
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    ca: Path
    cert: Path
    key: Path

    def policy(self, tls: str = "starttls") -> dict[str, object]:
        """Return the policy settings of a listener that uses this certificate."""
        return {"tls": tls, "certificate": str(self.cert), "key": str(self.key)}


class Authority:
    """Signs certificates into a folder; its own one is for this host too.

    A certificate is valid for as many days before now as after it, and at least for 3. Without
    `has_identifiers` there are no key identifiers, as with many private authorities.
    """

    def __init__(self, folder: Path, *, has_identifiers: bool = True, days: int = 30) -> None:
        self._folder, self._has_identifiers = folder, has_identifiers
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("test CA")
        self.pem = self._write("ca", self._key, self._name, HERE, days)
        self.ca = self.pem.with_suffix(".crt")

    def sign(self, name: str = "localhost", hosts: Sequence[str] = HERE, *, days: int = 30) -> Path:
        """Write NAME.crt, NAME.key, and NAME.pem with both; return NAME.pem."""
        return self._write(name, ec.generate_private_key(ec.SECP256R1()), _named(name), hosts, days)

    def _write(
        self, name: str, key: ec.EllipticCurvePrivateKey, subject: x509.Name, hosts: Sequence[str], days: int
    ) -> Path:
        now, is_ca = datetime.now(UTC), key is self._key
        addresses = [
            x509.IPAddress(ip_address(host)) if host[-1].isdigit() else x509.DNSName(host) for host in hosts
        ]
        builder = (
            x509.CertificateBuilder()
            .issuer_name(self._name)
            .subject_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=max(3, days)))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        )
        # Python 3.13 verifies strictly: an authority states its key's usage, and both have identifiers.
        if is_ca:
            # To sign, and to sign certificates.
            usage = x509.KeyUsage(True, False, False, False, False, True, False, False, False)
            builder = builder.add_extension(usage, critical=True)
        if self._has_identifiers:
            own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
            of_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(own, critical=False).add_extension(of_issuer, critical=False)
        encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        pem = self._folder / f"{name}.pem"
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(encoding)
        private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
        for suffix, content in ((".crt", certificate), (".key", private), (".pem", certificate + private)):
            pem.with_suffix(suffix).write_bytes(content)
            pem.with_suffix(suffix).chmod(0o600)
        return pem


def make_certificates(folder: Path, *hosts: str, days: int = 2) -> Certificates:
    """Make an authority, and a certificate that it signed for this host and these."""
    authority = Authority(folder, days=max(30, days))
    pem = authority.sign(hosts=[*HERE, *hosts], days=days)
    return Certificates(authority.ca, pem.with_suffix(".crt"), pem.with_suffix(".key"))


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


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
