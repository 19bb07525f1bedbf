"""`relay check`: every fault and 78, or a summary and 0."""

import subprocess
import sys
from pathlib import Path

import pytest

from relay.policy.source import PolicyError, parse_policy
from tests.unit.cli.conftest import Run
from tests.unit.cli.terminal import forked
from tests.unit.policy.examples import INTERFACE, SMALL, with_upstream

CREDENTIAL = ("host: smtp.example.net", "auth: {user: mjd, password_credential: hunter2}")


@pytest.fixture
def path(policy_path: Path) -> Path:
    return policy_path


def test_every_fault_is_a_line_and_the_code_is_78(path: Path, run: Run) -> None:
    path.write_text(SMALL.replace("messages: 8", "messages: 0").replace("spool: spool", "spol: spool"))
    code, out, err = run("check", str(path))
    assert (code, out) == (78, "")
    places = [line.removeprefix(f"{path}:").split(": ")[:2] for line in err.splitlines()]
    assert places == [["1:1", "?"], ["1:1", "spool"], ["9:20", "upstreams.isp.limits[0].messages"]]
    assert "did you mean spool?" in err


def test_a_secret_that_others_can_read_is_a_fault(path: Path, run: Run) -> None:
    path.write_text(INTERFACE.replace("    ca_file:", "    #"))
    (secret := path.parent / "secrets" / "isp").parent.mkdir()
    secret.write_text("hunter2\n")
    secret.chmod(0o644)
    key = "upstreams.isp.auth.password_file"
    fault = f"{path}:12:38: {key}: it is open to others (mode 0644); chmod 600 it\n"
    assert run("check") == (78, "", fault)
    secret.chmod(0o600)
    code, out, err = run("check")
    assert (code, err, "hunter2" in out) == (0, "", False)


def test_before_the_first_start_a_credential_is_a_note(path: Path) -> None:
    path.write_text(with_upstream(*CREDENTIAL))
    summed, shown = (forked("check", *words, CREDENTIALS_DIRECTORY="") for words in ([], ["--show"]))

    assert (summed.returncode, summed.stderr, shown.returncode) == (0, b"", 0)
    assert b"note: the credential of its password was not checked" in summed.stdout
    # Whoever takes the key for the password's own place writes the password there.
    assert b"hunter2" not in summed.stdout + shown.stdout


def test_a_database_is_named_without_its_secrets_and_needs_its_package(
    path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://relay@db.example.net/relay"
    history = f"history: {{postgresql: '{url}', password_file: p}}"
    path.write_text(with_upstream("host: smtp.example.net", history).replace("spool: spool", f"spool: {url}"))
    (path.parent / "p").write_text("hunter2")
    (path.parent / "p").chmod(0o600)
    code, out, err = run("check")
    assert (code, err) == (0, "")
    assert f"spool     /var/lib/relay/spool ({url})" in out
    assert f"history smtp.example.net in {url}" in out
    assert run("check", "--show")[1].count("hunter2") == 0

    monkeypatch.setitem(sys.modules, "psycopg", None)
    code, _, err = run("check")
    assert code == 78
    assert err.count("install relay-smarthost[postgresql]") == 2


def test_who_names_no_database_needs_no_package_for_it() -> None:
    program = (
        "import importlib, pkgutil, sys, relay\n"
        "sys.modules['psycopg'] = None\n"
        "for each in pkgutil.walk_packages(relay.__path__, 'relay.'):\n"
        "    if each.name != 'relay.__main__':\n"
        "        try: importlib.import_module(each.name)\n"
        "        except ModuleNotFoundError: print(each.name)\n"
    )
    needs_it = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert needs_it.stdout.split() == [
        "relay.cli.database",
        "relay.sender.account_row",
        *(f"relay.spool.database.{name}" for name in ("account", "connection", "schema")),
        *(f"relay.spool.postgresql.{name}" for name in ("engine", "intake")),
        "relay.throttle.postgresql_history",
    ]


def test_a_good_policy_is_summed_up(path: Path, run: Run) -> None:
    more = "  two: {host: '::1', tls: none, port: 25, history: /h, limits: []}\n"
    more += "http: 127.0.0.1:9725\nhostname: a.example\n"
    path.write_text(SMALL + more)
    summary = f"""\
{path} is good
spool     {path.parent}/spool (maildir)
listen    127.0.0.1:2525: clients 127.0.0.0/8
http      127.0.0.1:9725
upstream  isp: smtp.example.net port 587, TLS starttls, no auth, 4 connections
          at most 8 messages per 1m
          history {path.parent}/history/smtp.example.net
upstream  two: ::1 port 25, no TLS, no auth, 4 connections
          history /h
          note: no limits, so mail goes as fast as it is taken
          note: gets no mail; all of it goes to the first, isp
reports   through isp, from MAILER-DAEMON@a.example
"""
    assert run("check") == (0, summary, "")


def test_show_hides_what_may_be_secret_in_the_url_of_a_hook(path: Path, run: Run) -> None:
    path.write_text(f"{SMALL}notify: [{{url: 'https://a.example:8443/T0P?key=SECRET'}}]\n")
    shown = run("check", "--show").out

    assert "T0P" not in shown
    assert "SECRET" not in shown
    assert "url: https://a.example:8443/…" in shown
    # Whoever takes it for a policy is told, rather than that another URL is told of the mail.
    with pytest.raises(PolicyError, match="expected a URL"):
        parse_policy(shown.encode(), path)


def test_the_policy_is_of_the_environment_then_of_the_folder(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELAY_POLICY", raising=False)
    assert run("check").err.startswith("policy.yaml:1:1: policy: cannot read it")
    (tmp_path / "policy.yaml").write_text(SMALL)
    assert run("check").code == 0
    monkeypatch.setenv("RELAY_POLICY", "other.yaml")
    assert run("check").err.startswith("other.yaml:1:1: policy: cannot read it")
    assert run("check", "policy.yaml").code == run("check", "--policy", "policy.yaml").code == 0


@pytest.mark.parametrize(
    ("more", "shown", "notes"),
    [
        ("", "through isp, from MAILER-DAEMON@inside", 1),
        ("routes: [{sender: '<>', upstreams: two}, {upstreams: isp}]", "through two, from MAILER", 0),
        ("reports: {upstreams: [two, isp], from: p@x.example}", "through two, isp, from p@x.example", 1),
    ],
)
def test_reports_that_would_not_arrive_are_noted(
    more: str, shown: str, notes: int, path: Path, run: Run
) -> None:
    small = SMALL.replace("smtp.example.net", "smtp.office365.com")
    two = "  two: {host: smtp.gmail.com, limits: []}\n"
    path.write_text(f"{small}{two}hostname: inside\n{more}\n")
    code, out, _ = run("check")
    assert code == 0
    assert f"reports   {shown}" in out
    assert out.count(" refuses reports: ") == out.count("note: microsoft365 refuses reports") == notes
    assert "note: this host is called inside, without a domain: write hostname" in out


def test_two_spellings_of_one_host_are_one_account_and_are_told(path: Path, run: Run) -> None:
    other = "  two: {host: smtp.example.net, limits: []}\n"
    path.write_text(with_upstream("host: Smtp.Example.net.") + other)
    code, out, _ = run("check")
    assert code == 0
    assert out.count(f"history {path.parent}/history/smtp.example.net\n") == 2
    for name in ("isp", "two"):
        assert f"note: the same account as {name}: both count in one history, each by its own limits" in out
