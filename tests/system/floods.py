"""How long an honest client waits for a relay that strangers flood, and how long in peace."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher

from tests.fakes.certificates import make_certificates
from tests.system.flooding import KINDS, flood
from tests.system.relay import RelayProcess
from tests.system.waiting import free_port
from tests.system.waits import TIMES, Waits, compared, greeting, medians, message, page


@contextmanager
def flooded_relay() -> Iterator[RelayProcess]:
    """Run a relay that takes mail from 127.0.0.1, and has users elsewhere log in."""
    with tempfile.TemporaryDirectory(prefix="relay-floods-") as name:
        folder = Path(name)
        certificates = make_certificates(folder)
        users = folder / "users"
        users.write_text(f"mjd:{PasswordHasher().hash('open sesame')}\n")
        users.chmod(0o600)
        nowhere = {"host": "127.0.0.1", "port": free_port(), "tls": "none"}
        relay = RelayProcess(folder, {"nowhere": nowhere})
        relay.policy["listen"][0] |= {
            "clients": ["127.0.0.1/32"],
            "users_file": str(users),
            "certificate": str(certificates.cert),
            "key": str(certificates.key),
        }
        relay.write_policy()
        with relay:
            yield relay


def measure(relay: RelayProcess, kind: str, times: int = TIMES) -> dict[str, Waits]:
    """Return how long greeting, message and status page take in peace and in a flood of this kind."""
    asked = {
        "greeting": lambda: greeting(relay.port),
        "message": lambda: message(relay.port),
        "page": lambda: page(relay.http_port),
    }
    medians(asked, 3)
    peace = medians(asked, times)
    with flood(kind, relay.port):
        return compared(peace, medians(asked, times))


def rows() -> list[dict[str, Any]]:
    """Return a row for each kind of flood and each thing asked for."""
    found: list[dict[str, Any]] = []
    for kind, (connections, _) in KINDS.items():
        with flooded_relay() as relay:
            found += [
                {
                    "flood": f"{connections} x {kind}",
                    "asked_for": name,
                    "peace_ms": round(waits.peace_s * 1000, 2),
                    "flood_ms": round(waits.meanwhile_s * 1000, 2),
                    "ratio": round(waits.meanwhile_s / waits.peace_s, 1),
                }
                for name, waits in measure(relay, kind).items()
            ]
    return found
