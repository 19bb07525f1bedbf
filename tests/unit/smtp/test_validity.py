"""When a certificate ends, as openssl tells it."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.smtp.validity import ends_at_ns


def _certificate(folder: Path, days: int) -> tuple[bytes, datetime]:
    """Make one in DER; return it and the end that openssl prints."""
    key, made = folder / "key.pem", folder / "cert.der"
    command = ["openssl", "req", "-x509", "-nodes", "-days", str(days), "-subj", "/CN=localhost"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(
        [*command, "-keyout", key, "-outform", "DER", "-out", made], check=True, capture_output=True
    )
    told = ["openssl", "x509", "-inform", "DER", "-in", str(made), "-noout", "-enddate"]
    printed = subprocess.run(told, check=True, capture_output=True, text=True).stdout.strip()
    end = datetime.strptime(printed, "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
    return made.read_bytes(), end


@pytest.mark.parametrize("days", [1, 365, 40_000], ids=["a day", "a year", "after 2049"])
def test_the_end_is_what_openssl_prints(tmp_path: Path, days: int) -> None:
    certificate, end = _certificate(tmp_path, days)

    assert ends_at_ns(certificate) == int(end.timestamp()) * SECOND_NS


@given(st.binary(max_size=64))
def test_bytes_that_are_no_certificate_have_no_end(octets: bytes) -> None:
    assert ends_at_ns(octets) is None
