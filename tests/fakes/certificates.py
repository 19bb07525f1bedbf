"""A test CA and a certificate for this host, made by the openssl program."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_EXTENSIONS = """\
basicConstraints=critical,CA:FALSE
subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1
extendedKeyUsage=serverAuth
"""


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    ca: Path
    cert: Path
    key: Path

    def policy(self, tls: str = "starttls") -> dict[str, object]:
        """Return the policy settings of a listener that uses this certificate."""
        return {"tls": tls, "certificate": str(self.cert), "key": str(self.key)}


def make_certificates(folder: Path, *, days: int = 2) -> Certificates:
    """Make a CA, and a certificate that it signed for localhost, 127.0.0.1 and ::1."""
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    cert, key, request = folder / "cert.pem", folder / "key.pem", folder / "cert.csr"
    extensions = folder / "extensions"
    extensions.write_text(_EXTENSIONS, "ascii")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    # OpenSSL 3.2 and Python 3.13 verify strictly: the CA needs these extensions.
    is_ca = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"]
    _openssl(
        "req", "-x509", *new_key, "-keyout", ca_key, "-out", ca, "-days", "2", "-subj", "/CN=test CA", *is_ca
    )
    _openssl("req", "-new", *new_key, "-keyout", key, "-out", request, "-subj", "/CN=localhost")
    _openssl(
        "x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial",
        "-out", cert, "-days", str(days), "-extfile", extensions,
    )  # fmt: skip
    return Certificates(ca, cert, key)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
