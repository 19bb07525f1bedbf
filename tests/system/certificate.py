"""A certificate for loopback, made by the openssl program: real files, as an operator has them."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.system.demand import missing_program


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate for `localhost` and an address; it is its own authority."""

    certificate: Path
    key: Path


def why_missing() -> str | None:
    return missing_program("openssl")


def make_certificate(
    folder: Path, address: str = "127.0.0.1", *, days: int = 2, environment: Mapping[str, str] | None = None
) -> Certificate:
    """Write `cert.pem` and `key.pem` (mode 0600), valid from now; `environment` may fake openssl's clock."""
    made = Certificate(folder / "cert.pem", folder / "key.pem")
    command = ["openssl", "req", "-x509", "-nodes", "-days", str(days), "-subj", "/CN=localhost"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-addext", f"subjectAltName=DNS:localhost,IP:{address}"]
    # Python 3.13 and later refuse an authority whose key usage is not stated (RFC 5280, 4.2.1.3).
    command += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | dict(environment or {}))
    made.key.chmod(0o600)
    return made
