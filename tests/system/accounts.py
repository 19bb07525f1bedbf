"""Accounts at real Postfixes whose logins Dovecot checks, as a policy writes them.

One account has a password, the other tokens that live for 5 s; each may use only its own senders.
"""

from pathlib import Path
from typing import Any

from tests.fakes.token_server import CLIENT, SECRET, USER, TokenServer
from tests.system.postfix import Postfix

NAME, PASSWORD = "mjd", "correct horse"
LIFE_SECONDS = 5


def owned(login: str, domain: str) -> dict[str, str]:
    pattern = domain.replace(".", r"\.")
    return {
        "smtpd_sender_login_maps": f"regexp:{{ {{/@{pattern}$$/ {login}}} {{/./ nobody}} }}",
        "smtpd_sender_restrictions": "reject_sender_login_mismatch",
    }


def by_password(upstream: Postfix, folder: Path) -> dict[str, Any]:
    """Return the section of an upstream; write the file of the password into the folder."""
    _write(folder / "password", PASSWORD)
    return _section(upstream) | {"auth": {"user": NAME, "password_file": "password"}}


def by_token(upstream: Postfix, server: TokenServer, folder: Path, mechanism: str = "auto") -> dict[str, Any]:
    _write(folder / "secret", SECRET)
    _write(folder / "refresh", server.refresh_token())
    oauth2 = {
        "grant": "refresh_token",
        "client_id": CLIENT,
        "client_secret_file": "secret",
        "refresh_token_file": "refresh",
        "token_url": f"{server.url}/token",
        "scope": "smtp",
        "mechanism": mechanism,
    }
    return _section(upstream) | {"auth": {"user": USER, "oauth2": oauth2}}


def _section(upstream: Postfix) -> dict[str, Any]:
    return {
        "host": "localhost",
        "port": upstream.port,
        "tls": "starttls",
        "ca_file": str(upstream.certificate),
    }


def _write(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text + "\n")
