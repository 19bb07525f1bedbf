"""`relay login` and `relay probe`, as typed: what they print, what they charge, how they exit."""

import asyncio
import contextlib
import io
import re
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from relay.clock import SystemClock
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.throttle.opening import book_in_file
from relay.throttle.throttle import View
from tests.fakes.certificates import make_certificates
from tests.fakes.smarthost import Smarthost
from tests.fakes.token_server import CLIENT, USER, TokenServer
from tests.unit.cli.control import code_of


class Practised(NamedTuple):
    """A smarthost and a token server in threads of their own, and a policy for them."""

    folder: Path
    server: TokenServer
    host: Smarthost

    def run(self, *arguments: str, stdin: str = "") -> tuple[int, str]:
        output = io.StringIO()
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            patch("sys.stdin", io.StringIO(stdin)),
        ):
            code = code_of(*arguments, "--policy", str(self.folder / "policy.yaml"))
        return code, output.getvalue()

    def used(self) -> list[int]:
        """Return how many slots of each limit are occupied, by the history's file."""
        path = self.folder / "policy.yaml"
        policy, clock = parse_policy(path.read_bytes(), path), SystemClock()
        upstream = policy.upstreams["isp"]
        history, limits = policy.history_path("isp"), upstream.limits
        book = book_in_file(history, limits, upstream.guard_ns, RealDisk(), clock)
        return [usage.used for usage in View(book, clock).usage()]

    def consent(self) -> None:
        path = self.folder / "refresh"
        path.touch(0o600)
        path.write_text(self.server.refresh_token())


@pytest.fixture
def practised(tmp_path: Path) -> Iterator[Practised]:
    certificates = make_certificates(tmp_path, days=9)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.cert, certificates.key)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    with TokenServer() as server, contextlib.ExitStack() as at_end:
        host = Smarthost(mechanisms=["XOAUTH2", "OAUTHBEARER"], tls=tls, is_token=server.is_good)
        thread.start()
        for undo in (loop.close, thread.join, lambda: loop.call_soon_threadsafe(loop.stop)):
            at_end.callback(undo)
        asyncio.run_coroutine_threadsafe(host.__aenter__(), loop).result()
        at_end.callback(lambda: asyncio.run_coroutine_threadsafe(host.stop(), loop).result())
        (tmp_path / "secret").touch(0o600)
        (tmp_path / "secret").write_text(server.client.secret or "")
        (tmp_path / "policy.yaml").write_text(f"""
spool: ./spool
hostname: relay.test
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams:
  isp:
    host: localhost
    port: {host.port}
    ca_file: ca.pem
    auth:
      user: {USER}
      oauth2:
        grant: refresh_token
        client_id: {CLIENT}
        client_secret_file: secret
        refresh_token_file: refresh
        token_url: "{server.url}/token"
        device_url: "{server.url}/device"
        scope: smtp
    limits: [{{messages: 1, per: 1h}}, {{connections: 3, per: 1h}}]
  plain: {{host: localhost, port: {host.port}, ca_file: ca.pem, limits: []}}
""")
        yield Practised(tmp_path, server, host)


STEPS = ["token", "resolve", "connect", "greeting", "ehlo", "tls", "ehlo", "login"]
FIRST_STEPS = ["token", "history", *STEPS[1:]]
"""The first ever begins the history, which no start then tells."""


def _steps(output: str) -> list[str]:
    return [line.split()[0] for line in output.splitlines()]


def test_a_probe_tells_each_step_and_sends_nothing(practised: Practised) -> None:
    practised.consent()
    code, output = practised.run("probe", "isp")
    assert (code, _steps(output)) == (0, [*FIRST_STEPS, "quit"])
    assert re.search(r"history .* begins empty, at .*: nothing sent before counts\n", output)
    assert re.search(r"localhost by test CA, [89] days left \(until ", output)
    assert "OAUTHBEARER" in output
    assert not [command for command in practised.host.commands if command.startswith("MAIL")]
    assert practised.used() == [0, 1]


def test_a_probe_says_what_is_wrong(practised: Practised) -> None:
    code, output = practised.run("probe", "isp")
    assert (code, "run `relay login isp`" in output) == (78, True)

    practised.consent()
    practised.server.failures.append((503, b"", {}))
    code, output = practised.run("probe", "isp")
    assert (code, _steps(output)) == (75, ["token"])

    practised.server.revoke_consent()
    code, output = practised.run("probe", "isp")
    assert (code, "invalid_grant" in output) == (77, True)
    assert practised.used() == [0, 0]

    other = make_certificates(_made(practised.folder / "other"))
    (practised.folder / "ca.pem").write_bytes(other.ca.read_bytes())
    practised.consent()
    code, output = practised.run("probe", "isp")
    assert (code, _steps(output)[-1]) == (78, "tls")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_wrong_call_does_nothing(practised: Practised) -> None:
    practised.consent()
    for arguments, code in ((["probe", "nobody"], 64), (["login", "nobody"], 64), (["login", "plain"], 78)):
        assert practised.run(*arguments)[0] == code
    assert practised.server.requests == []


def test_a_login_ends_with_a_token_on_disk(practised: Practised) -> None:
    practised.server.consent = True
    code, output = practised.run("login", "isp")

    token = (practised.folder / "refresh").read_text().strip()
    assert code == 0
    assert f"{practised.server.url}/activate" in output
    assert token == practised.server.granted[-1].fields["refresh_token"]
    assert token not in output
    assert (practised.folder / "refresh").stat().st_mode & 0o777 == 0o600
    assert practised.run("probe", "isp")[0] == 0


def test_a_refused_login_keeps_what_there_was(practised: Practised) -> None:
    practised.server.consent = False
    practised.consent()
    before = (practised.folder / "refresh").read_text()

    assert practised.run("login", "isp")[0] == 77
    assert (practised.folder / "refresh").read_text() == before


def test_a_link_is_for_who_has_no_code(practised: Practised) -> None:
    path = practised.folder / "policy.yaml"
    path.write_text(path.read_text().replace('device_url: "http', 'login_url: "https'))
    code, output = practised.run("login", "isp", stdin="http://127.0.0.1:1/?code=c&state=another\n")

    assert code == 77
    assert "response_type=code" in output
    assert practised.server.requests == []
