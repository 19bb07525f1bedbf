"""`relay check`, `relay plan`, `relay hash-password`: a policy and its users, before they are in force."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from argon2 import PasswordHasher

from relay.clock import SystemClock
from relay.policy.secrets import read_users
from relay.policy.source import PolicyError, parse_policy
from relay.spool.disk.durable import RealDisk
from relay.status.plan import plan_to_json
from relay.throttle.admission import Request
from relay.throttle.file_history import FileHistory
from relay.throttle.throttle import Throttle
from tests.engines.spool.engine import accept
from tests.engines.spool.maildir_engine import on_the_kernel
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import POLICY, relay_up, write_policy
from tests.unit.cli.terminal import forked
from tests.unit.policy.examples import INTERFACE, SMALL, with_upstream

CREDENTIAL = ("host: smtp.example.net", "auth: {user: mjd, password_credential: hunter2}")
LIMITED = POLICY.replace("limits: []", "limits: [{messages: 3, per: 1h}]").replace(
    "    auth: {user: mjd, password_file: not-there}\n", ""
)


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
    assert run("plan", str(path)) == (78, "", err), "as of an edited file, of which no relay is asked"


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


def test_the_preset_of_gmail_is_what_its_page_promises(
    path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/providers.md."""
    monkeypatch.setenv("GMAIL_PASSWORD", "hunter2")
    path.write_text(
        with_upstream("provider: gmail", "auth: {user: me@gmail.com, password_env: GMAIL_PASSWORD}")
    )
    code, out, err = run("check", "--show")
    assert (code, err) == (0, "")
    shown = yaml.safe_load(out)["upstreams"]["isp"]
    place = shown["host"], shown["port"], shown["tls"], shown["connections"], shown["max_recipients"]
    assert place == ("smtp.gmail.com", 587, "starttls", 2, 100)

    code, out, err = run("check")
    assert (code, err) == (0, "")
    _, _, *said = out.partition("smtp.gmail.com port 587, TLS starttls, user me@gmail.com, 2 connections")
    about, first, second = said[0].splitlines()[1:4]
    assert "a personal account" in about
    assert [each.split() for each in (first, second)] == [
        f"at most 500 {unit} per 24h".split() for unit in ("messages", "recipients")
    ]


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


def test_a_good_policy_is_summed_up_and_what_may_surprise_is_noted(path: Path, run: Run) -> None:
    more = "  two: {host: '::1', tls: none, port: 25, history: /h, limits: []}\n"
    more += "  three: {host: Smtp.Example.net., limits: []}\nhostname: inside\n"
    more += "reports: {upstreams: [isp, two], from: p@x.example}\n"
    path.write_text(SMALL.replace("    limits", "    provider: microsoft365\n    limits") + more)
    code, out, err = run("check")
    assert (code, err, out.splitlines()[0]) == (0, "", f"{path} is good")
    for words in (
        f"spool     {path.parent}/spool (maildir)",
        "listen    127.0.0.1:2525: clients 127.0.0.0/8",
        "upstream  isp: smtp.example.net port 587, TLS starttls, no auth, 3 connections",
        "          at most 8 messages per 1m",
        f"          history {path.parent}/history/smtp.example.net",
        "upstream  two: ::1 port 25, no TLS, no auth, 4 connections",
        "          note: no limits, so mail goes as fast as it is taken",
        "          note: gets no mail; no route names it",
        "          note: the same account as isp: both count in one history, each by its own limits",
        "reports   through isp, two, from p@x.example",
        "          note: microsoft365 refuses reports: name another upstream in reports.upstreams",
        "          note: this host is called inside, without a domain: write hostname",
    ):
        assert words in out.splitlines()


def test_show_hides_what_may_be_secret_in_the_url_of_a_hook(path: Path, run: Run) -> None:
    path.write_text(f"{SMALL}notify: [{{url: 'https://a.example:8443/T0P?key=SECRET'}}]\n")
    shown = run("check", "--show").out

    assert ("T0P" in shown, "SECRET" in shown) == (False, False)
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


@pytest.fixture
def edited(path: Path) -> Path:
    """Return an edit that allows fewer, beside the policy in force."""
    write_policy(path.parent, LIMITED)
    (path.parent / "edited.yaml").write_text(LIMITED.replace("messages: 3", "messages: 1"))
    return path.parent / "edited.yaml"


def test_a_plan_is_that_of_the_relay_that_runs(edited: Path, run: Run) -> None:
    with relay_up(edited.parent, LIMITED.replace("messages: 3", "messages: 6")) as up:
        for _ in range(4):
            up.accept()
        code, out, _ = run("plan", str(edited))
        found = json.loads(run("plan", str(edited), "--json").out)
        assert found == json.loads(json.dumps(plan_to_json(up.client.plan(edited.read_text(), edited))))

    assert (code, found["is_running"]) == (0, True)
    for words in (
        "upstreams.isp.limits",
        "isp: 4 messages, 4 recipients wait",
        "edited:   all have gone in 3h",
    ):
        assert words in out


def test_a_plan_of_a_relay_that_is_down_tells_what_a_start_would_do_and_changes_no_history(
    edited: Path, run: Run
) -> None:
    engine, disk, clock = on_the_kernel(edited.parent), RealDisk(), SystemClock()
    engine.start().close()
    intake = engine.intake()
    accept(intake)
    intake.close()
    policy = parse_policy(LIMITED.encode(), edited)
    history = policy.history_path("isp")
    account = Throttle(FileHistory(history, disk, clock), policy.upstreams["isp"].limits, None, clock)
    for answer in account.reserve([Request(1)] * 2):
        account.settle(answer, clock.boottime_ns())  # type: ignore[arg-type]  # both have room
    account.flush()
    account.close()
    before = history.read_bytes(), history.stat().st_mtime_ns
    held = disk.lock(f"{history}.lock", wait=False)
    assert held is not None

    found = json.loads(run("plan", "--json", str(edited)).out)
    out = run("plan", str(edited)).out

    disk.close(held)
    assert (history.read_bytes(), history.stat().st_mtime_ns) == before
    (over,) = found["over"]
    assert (found["is_running"], over["limit"], over["used"]) == (False, "1 messages per 3600s", 2)
    assert "over at once: isp: 1 messages per 3600s: 2 of 1 used, and nothing goes until 20" in out
    assert "in force: all have gone in 0s" in out


def test_the_line_is_a_user_of_a_users_file(tmp_path: Path) -> None:
    ran = forked("hash-password", "ann@example.net", given="pässwörd\n".encode())
    assert (ran.returncode, ran.stderr) == (0, b"")
    (users := tmp_path / "users").touch(0o600)
    users.write_bytes(ran.stdout)
    ((name, hashed),) = read_users(users).items()
    assert name == "ann@example.net"
    assert PasswordHasher().verify(hashed, "pässwörd")


@pytest.mark.parametrize(
    ("name", "password"),
    [*(("ann", each) for each in (b"\n", b"hunter2\nx\n", b"hun\0ter2", b"x" * 7000)), ("a:b", b"hunter2\n")],
)
def test_what_sasl_or_a_users_file_cannot_carry_exits_64(name: str, password: bytes) -> None:
    ran = forked("hash-password", name, given=password)
    assert (ran.returncode, ran.stdout, b"hunter2" in ran.stderr) == (os.EX_USAGE, b"", False)
