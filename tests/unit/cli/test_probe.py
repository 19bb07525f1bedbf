"""`relay login` and `relay probe`, as typed: what they print, what they charge, how they exit."""

import io
import re
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from relay.clock import SystemClock
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.throttle.limit import with_ceilings
from relay.throttle.throttle import View, recorded_book
from tests.fakes.certificates import Certificates, make_certificates
from tests.fakes.smarthost import Smarthost
from tests.fakes.token_server import CLIENT, USER, TokenServer
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import LoopThread

POLICY = """\
spool: ./spool
hostname: relay.test
listen: [{address: "127.0.0.1:0", clients: [127.0.0.0/8]}]
upstreams:
  isp:
    host: localhost
    port: PORT
    ca_file: CA
    auth:
      user: USER
      oauth2:
        grant: refresh_token
        client_id: CLIENT
        client_secret_file: secret
        refresh_token_file: refresh
        token_url: "SERVER/token"
        device_url: "SERVER/device"
        scope: smtp
    limits: [{messages: 1, per: 1h}, {connections: 3, per: 1h}]
  plain: {host: localhost, port: PORT, ca_file: CA, limits: []}
"""


class Practised(NamedTuple):
    """A smarthost and a token server in threads of their own, and a policy for them."""

    policy_path: Path
    server: TokenServer
    host: Smarthost

    @property
    def refresh_token(self) -> Path:
        return self.policy_path.parent / "refresh"

    def used(self) -> list[int]:
        """Return the number of occupied slots of each limit, read from the history's file."""
        policy, clock = parse_policy(self.policy_path.read_bytes(), self.policy_path), SystemClock()
        upstream = policy.upstreams["isp"]
        past = View(recorded_book(policy.history_of("isp"), RealDisk(), clock), clock)
        return [usage.used for usage in past.judged_by(with_ceilings(upstream, {})).usage()]

    def consent(self) -> None:
        self.refresh_token.touch(0o600)
        self.refresh_token.write_text(self.server.refresh_token())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"), days=9)


@pytest.fixture
def practised(policy_path: Path, certificates: Certificates) -> Iterator[Practised]:
    folder = policy_path.parent
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.cert, certificates.key)
    with TokenServer() as server, ExitStack() as at_end:
        host = Smarthost(mechanisms=["XOAUTH2", "OAUTHBEARER"], tls=tls, is_token=server.is_good)
        loop = LoopThread()
        at_end.callback(loop.close)
        loop.do(host.__aenter__())
        at_end.callback(lambda: loop.do(host.stop()))
        (folder / "secret").touch(0o600)
        (folder / "secret").write_text(server.secret or "")
        text = POLICY.replace("PORT", str(host.port)).replace("SERVER", server.url)
        text = text.replace("USER", USER).replace("CLIENT", CLIENT)
        policy_path.write_text(text.replace("CA", str(certificates.ca)))
        yield Practised(policy_path, server, host)


STEPS = ["history", "token", "resolve", "connect", "greeting", "ehlo", "tls", "ehlo", "login", "quit"]


def _steps(output: str) -> list[str]:
    return [line.split()[0] for line in output.splitlines()]


def test_a_probe_prints_each_step_and_sends_no_mail(practised: Practised, run: Run) -> None:
    practised.consent()
    code, output, _ = run("probe", "isp")
    assert (code, _steps(output)) == (0, STEPS)
    # The first probe creates the history; no later start announces it.
    assert re.search(r"history .* new history .*: earlier mail is not counted\n", output)
    assert re.search(r"localhost by test CA, [89] days left \(until ", output)
    assert "OAUTHBEARER" in output
    assert not [command for command in practised.host.commands if command.startswith("MAIL")]
    assert practised.used() == [0, 1]


def test_a_failed_probe_says_what_is_wrong_and_exits_with_a_code_for_it(
    practised: Practised, certificates: Certificates, tmp_path: Path, run: Run
) -> None:
    code, output, err = run("probe", "isp")
    assert (code, "run `relay login isp`" in output + err) == (78, True)

    practised.consent()
    practised.server.failures.append((503, b"", {}))
    code, output, _ = run("probe", "isp")
    assert (code, _steps(output)) == (75, ["history", "token"])

    practised.server.revoke_consent()
    code, output, err = run("probe", "isp")
    assert (code, "invalid_grant" in output + err) == (77, True)
    assert practised.used() == [0, 0]

    practised.policy_path.write_text(
        practised.policy_path.read_text().replace(str(certificates.ca), str(make_certificates(tmp_path).ca))
    )
    practised.consent()
    code, output, _ = run("probe", "isp")
    assert (code, _steps(output)[-1]) == (78, "tls")


def test_a_wrong_call_asks_no_token_server(practised: Practised, run: Run) -> None:
    practised.consent()
    for arguments, code in ((["probe", "nobody"], 64), (["login", "nobody"], 64), (["login", "plain"], 78)):
        assert run(*arguments).code == code
    assert practised.server.requests == []


def test_a_login_writes_the_refresh_token_to_disk(practised: Practised, run: Run) -> None:
    practised.server.consent = True
    code, output, err = run("login", "isp")

    token = practised.refresh_token.read_text().strip()
    assert code == 0
    assert f"{practised.server.url}/activate" in output + err
    assert token == practised.server.granted[-1].fields["refresh_token"]
    assert token not in output + err
    assert practised.refresh_token.stat().st_mode & 0o777 == 0o600


def test_a_refused_login_keeps_the_old_refresh_token(practised: Practised, run: Run) -> None:
    practised.server.consent = False
    practised.consent()
    before = practised.refresh_token.read_text()

    assert run("login", "isp").code == 77
    assert practised.refresh_token.read_text() == before


def test_a_login_without_a_device_url_prints_a_link_and_refuses_another_logins_answer(
    practised: Practised, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = practised.policy_path
    path.write_text(path.read_text().replace('device_url: "http', 'login_url: "https'))
    monkeypatch.setattr("sys.stdin", io.StringIO("http://127.0.0.1:1/?code=c&state=another\n"))
    code, output, err = run("login", "isp")

    assert (code, "response_type=code" in output + err) == (77, True)
    assert practised.server.requests == []
