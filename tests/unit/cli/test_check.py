"""`relay check`: every fault and 78, or a summary and 0."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.cli.main import main
from relay.policy.differences import differences
from relay.policy.faults import PolicyError
from relay.policy.source import inspected_policy, parse_policy
from tests.unit.policy.examples import INTERFACE, SMALL, with_listen, with_upstream

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(capfd: pytest.CaptureFixture[str]) -> Check:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["check", *arguments])
        out, err = capfd.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err

    return run


def test_every_fault_is_a_line_and_the_code_is_78(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(SMALL.replace("messages: 8", "messages: 0").replace("spool: spool", "spol: spool"))
    code, out, err = check(str(path))
    assert (code, out) == (78, "")
    assert (
        err
        == f"""\
{path}:1:1: ?: unknown key; did you mean spool?
{path}:1:1: spool: this key is required
{path}:9:20: upstreams.isp.limits[0].messages: expected a whole number above zero, got a number
"""
    )


def test_a_terminal_is_shown_the_keys_and_values_too(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        SMALL.replace("messages: 8", "messages: 0") + "    auth: {hunter2: 1, user: 5}\nspol: x\n"
    )
    terminal, its_end = os.openpty()
    command = [sys.executable, "-m", "relay", "check", str(path)]
    checking = subprocess.run(command, stderr=its_end, stdout=subprocess.DEVNULL, check=False)
    os.close(its_end)
    shown = os.read(terminal, 65536).decode().replace("\r\n", "\n")
    os.close(terminal)
    keys = "mechanism, oauth2, password_credential, password_env, password_file, user"
    auth = f"{path}:10"
    assert checking.returncode == 78
    assert (
        shown
        == f"""\
{path}:9:20: upstreams.isp.limits[0].messages: expected a whole number above zero, got 0
{auth}:11: upstreams.isp.auth: expected one of password_file, password_env, password_credential and oauth2
{auth}:12: upstreams.isp.auth.?: unknown key; known here: {keys}
{auth}:30: upstreams.isp.auth.user: expected text, got a number; put it in quotes
{path}:11:1: spol: unknown key; did you mean spool?
"""
    )


def test_a_secret_that_others_can_read_is_a_fault(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(INTERFACE.replace("    ca_file:", "    #"))
    (tmp_path / "secrets").mkdir()
    secret = tmp_path / "secrets" / "isp"
    secret.write_text("hunter2\n")
    secret.chmod(0o644)
    code, out, err = check(str(path))
    assert (code, out) == (78, "")
    key = "upstreams.isp.auth.password_file"
    assert err == f"{path}:12:38: {key}: it is open to others (mode 0644); chmod 600 it\n"
    secret.chmod(0o600)
    code, out, err = check(str(path))
    assert (code, err) == (0, "")
    assert "hunter2" not in out


CREDENTIAL = ("host: smtp.example.net", "auth: {user: mjd, password_credential: hunter2}")


def test_before_the_first_start_a_credential_is_a_note(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(with_upstream(*CREDENTIAL))
    surroundings = {name: value for name, value in os.environ.items() if name != "CREDENTIALS_DIRECTORY"}
    command = [sys.executable, "-m", "relay", "check", str(path)]
    ran = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "note: the credential of its password was not checked" in ran.stdout
    # Whoever takes the key for the password's own place writes the password there.
    assert "hunter2" not in ran.stdout


def test_a_password_in_place_of_a_credentials_name_is_not_shown_in_full_either(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    path = tmp_path / "policy.yaml"
    path.write_text(with_upstream(*CREDENTIAL))
    code, out, _ = check("--show", str(path))
    assert code == 0
    assert 'password_credential: "…"' in out
    assert "hunter2" not in out

    old, new = (
        parse_policy(with_upstream(CREDENTIAL[0], auth).encode(), path)
        for auth in (CREDENTIAL[1], CREDENTIAL[1].replace("hunter2", "hunter3"))
    )
    (difference,) = differences(old, new)
    assert difference.words == "isp.auth.password_credential: … → …"


def test_where_there_are_credentials_a_missing_one_is_a_fault(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    path = tmp_path / "policy.yaml"
    path.write_text(with_upstream(*CREDENTIAL))
    assert check(str(path))[0] == 78

    (tmp_path / "hunter2").write_text("secret\n")
    (tmp_path / "hunter2").chmod(0o600)
    code, out, _ = check(str(path))
    assert code == 0
    assert "note: the credential" not in out


def test_a_start_without_its_credential_is_still_refused(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    path = tmp_path / "policy.yaml"
    path.write_text(with_upstream(*CREDENTIAL))
    assert check(str(path))[0] == 0

    with pytest.raises(PolicyError, match="CREDENTIALS_DIRECTORY is not set"):
        inspected_policy(path.read_bytes(), path)


def test_an_unreadable_policy_is_one_fault(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "missing.yaml"
    assert check(str(path)) == (78, "", f"{path}:1:1: policy: cannot read it: No such file or directory\n")


def test_a_good_policy_is_summed_up(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    more = (
        "  two: {host: '::1', tls: none, port: 25, history: /h}\nhttp: 127.0.0.1:9725\nhostname: a.example\n"
    )
    path.write_text(SMALL + more)
    assert check(str(path)) == (
        0,
        f"""\
{path} is good
spool     {tmp_path}/spool
listen    127.0.0.1:2525: clients 127.0.0.0/8
http      127.0.0.1:9725
upstream  isp: smtp.example.net port 587, TLS starttls, no auth, 4 connections
          at most 8 messages per 1m
          history {tmp_path}/history/smtp.example.net
upstream  two: ::1 port 25, no TLS, no auth, 4 connections
          history /h
          note: no limits, so mail goes as fast as it is taken
          note: gets no mail; all of it goes to the first, isp
reports   through isp, from MAILER-DAEMON@a.example
restart   needed after a change of spool, listen, http, hostname; all else is live
""",
        "",
    )


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        (
            "",
            [
                "reports   through isp, from MAILER-DAEMON@inside",
                "          note: microsoft365 refuses reports",
            ],
        ),
        (
            "routes: [{sender: '<>', upstreams: two}, {upstreams: isp}]",
            ["reports   through two, from MAILER"],
        ),
        (
            "reports: {upstreams: [two, isp], from: p@x.example}",
            ["reports   through two, isp, from p@x.example", "          note: microsoft365 refuses reports"],
        ),
    ],
)
def test_reports_that_would_not_arrive_are_noted(
    check: Check, tmp_path: Path, more: str, shown: list[str]
) -> None:
    path = tmp_path / "policy.yaml"
    small = SMALL.replace("smtp.example.net", "smtp.office365.com")
    path.write_text(f"{small}  two: {{host: '::1', tls: none, port: 25}}\nhostname: inside\n{more}\n")
    code, out, _ = check(str(path))
    lines = out[out.index("reports ") :].splitlines()[:-1]
    assert code == 0
    assert len(lines) == len(shown) + 1
    assert all(line.startswith(words) for line, words in zip(lines, shown, strict=False))
    assert lines[-1] == "          note: this host is called inside, without a domain: write hostname"


def test_lanes_are_summed_up_with_their_shares(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        f"{SMALL}lanes: {{a: {{sender: '@x', share: 40, ceiling: 90}}, b: {{recipients_above: 5}}}}\n"
    )

    lines = check(str(path))[1].splitlines()

    assert [line for line in lines if line.startswith("lane")] == [
        "lane      a: 40 % of what goes, at most 90 % of each limit",
        "lane      b: 30 % of what goes",
        "lane      default: 30 % of what goes",
    ]


def test_lanes_written_out_with_their_defaults_mean_the_same(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    lane = "{sender: ['@x', '<>'], client: 10.0.0.0/7, header: {List-Id: '*'}, share: 40, patience: null}"
    path.write_text(f"{SMALL}lanes: {{a: {lane}, default: {{ceiling: 3}}}}\n")

    shown = check("--show", str(path))[1]

    assert parse_policy(shown.encode(), path) == parse_policy(path.read_bytes(), path)


def test_show_hides_what_may_be_secret_in_the_url_of_a_hook(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        f"{SMALL}notify: [{{url: 'https://a.example:8443/T0P?key=SECRET'}}, {{url: 'https://b.example/'}}]\n"
    )

    shown = check("--show", str(path))[1]

    assert "T0P" not in shown
    assert "SECRET" not in shown
    assert 'url: "https://a.example:8443/…"' in shown
    assert 'url: "https://b.example/"' in shown
    # Whoever takes it for a policy is told, rather than that another URL is told of the mail.
    with pytest.raises(PolicyError, match="expected a URL"):
        parse_policy(shown.encode(), path)


def test_show_prints_the_rules_of_the_provider_with_their_sources(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(with_upstream("provider: dreamhost"))

    code, out, _ = check("--show", str(path))

    assert code == 0
    rules = [line for line in out.splitlines() if line.startswith("    # - {") and "quota exceeded" in line]
    assert rules
    assert all("probe: false" in rule and 'source: "help.dreamhost.com' in rule for rule in rules)


def test_a_listener_that_nobody_may_use_is_noted(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(with_listen("address: 127.0.0.1:2525"))
    code, out, _ = check(str(path))
    assert code == 0
    assert "note: nobody may relay through it" in out


def test_the_policy_is_of_the_environment_then_of_the_folder(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELAY_POLICY", raising=False)
    assert check()[2].startswith("policy.yaml:1:1: policy: cannot read it")
    (tmp_path / "policy.yaml").write_text(SMALL)
    assert check()[0] == 0
    monkeypatch.setenv("RELAY_POLICY", "other.yaml")
    assert check()[2].startswith("other.yaml:1:1: policy: cannot read it")
    assert check("policy.yaml")[0] == 0
    assert check("--policy", "policy.yaml")[0] == 0


def test_what_steers_a_terminal_is_not_printed(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31m.yaml"
    path.write_text(SMALL)
    code, out, _ = check(str(path))
    assert code == 0
    assert "\x1b" not in out


def test_check_loads_no_server(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(SMALL)
    script = (
        "import sys\n"
        "from relay.cli.main import main\n"
        "try:\n"
        f"    main(['check', {str(path)!r}])\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        "servers = {'aiohttp', 'aiosmtpd', 'aiosmtplib', 'asyncio', 'argon2', 'uvloop'}\n"
        "print(sorted(servers & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_an_address_that_this_host_lacks_is_noted(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    for address, is_noted in (("192.0.2.1", True), ("2001:db8::1", True), ("127.0.0.1", False)):
        path.write_text(with_upstream("host: smtp.example.net", f"source_address: {address}"))
        code, out, _ = check(str(path))
        assert code == 0
        assert f"port 587, from {address}" in out
        assert (f"note: this host has no address {address}" in out) is is_noted
