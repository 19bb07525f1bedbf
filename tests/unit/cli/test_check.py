"""`relay check`, `relay plan`, `relay hash-password`: a policy and its users, before they are in force."""

import json
import os
import sys
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from relay.policy.secrets import read_users
from relay.policy.source import PolicyError, parse_policy
from relay.throttle.admission import Request
from relay.throttle.throttle import Throttle
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import POLICY, charged, relay_up, write_policy
from tests.unit.cli.terminal import forked
from tests.unit.policy.examples import INTERFACE, SMALL, with_upstream

CREDENTIAL = ("host: smtp.example.net", "auth: {user: mjd, password_credential: hunter2}")
LIMITED = POLICY.replace("limits: []", "limits: [{messages: 3, per: 1h}]").replace(
    "    auth: {user: mjd, password_file: not-there}\n", ""
)


def test_check_prints_one_line_for_each_fault_and_exits_78(policy_path: Path, run: Run) -> None:
    policy_path.write_text(SMALL.replace("messages: 8", "messages: 0").replace("spool: spool", "spol: spool"))
    code, out, err = run("check", str(policy_path))
    assert (code, out) == (78, "")
    places = [line.removeprefix(f"{policy_path}:").split(": ")[:2] for line in err.splitlines()]
    assert places == [["1:1", "?"], ["1:1", "spool"], ["9:20", "upstreams.isp.limits[0].messages"]]
    assert run("plan", str(policy_path)) == (78, "", err), "as of an edited file, of which no relay is asked"


def test_check_reads_the_files_that_a_policy_names(policy_path: Path, run: Run) -> None:
    policy_path.write_text(INTERFACE.replace("    ca_file:", "    #"))
    (secret := policy_path.parent / "secrets" / "isp").parent.mkdir()
    secret.write_text("hunter2\n")
    secret.chmod(0o644)
    code, out, err = run("check")
    assert (code, out, err.startswith(f"{policy_path}:12:38: ")) == (78, "", True)
    secret.chmod(0o600)
    code, out, err = run("check")
    assert (code, err, "hunter2" in out) == (0, "", False)


def test_check_without_a_credentials_directory_only_notes_the_credential(policy_path: Path) -> None:
    policy_path.write_text(with_upstream(*CREDENTIAL))
    summed, shown = (forked("check", *words, CREDENTIALS_DIRECTORY="") for words in ([], ["--show"]))

    assert (summed.returncode, summed.stderr, shown.returncode) == (0, b"", 0)
    assert b"note: isp: the credential of its password was not checked" in summed.stdout
    # An operator may write the password itself as the value of password_credential.
    assert b"hunter2" not in summed.stdout + shown.stdout


def test_check_names_a_database_without_its_secrets_and_demands_psycopg(
    policy_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://relay@db.example.net/relay"
    upstream = with_upstream("host: smtp.example.net", f"history: {{postgresql: '{url}', password_file: p}}")
    policy_path.write_text(upstream.replace("spool: spool", f"spool: {url}"))
    (password := policy_path.parent / "p").touch(0o600)
    password.write_text("hunter2")
    code, out, _ = run("check", "--show")
    assert (code, out.count(url)) == (0, 2)
    assert "hunter2" not in out + run("check").out

    monkeypatch.setitem(sys.modules, "psycopg", None)
    code, _, err = run("check")
    assert (code, err.count("install relay-smarthost[postgresql]")) == (78, 2)


def test_check_notes_what_may_surprise_in_a_good_policy(policy_path: Path, run: Run) -> None:
    more = "  two: {host: '::1', tls: none, port: 25, history: /h, limits: []}\n"
    more += "  three: {host: Smtp.Example.net., limits: []}\nhostname: inside\n"
    more += "reports: {upstreams: [isp, two], from: p@x.example}\n"
    policy_path.write_text(SMALL.replace("    limits", "    provider: microsoft365\n    limits") + more)
    code, out, err = run("check")
    assert (code, err, out.splitlines()[0]) == (0, "", f"{policy_path} is good")
    for words in (
        "note: three: no limits: mail goes as fast",
        "note: three: gets no mail",
        "note: three: the same account as isp",
        "note: isp: provider microsoft365: ",
        "note: microsoft365 refuses reports",
        "note: the host name inside has no domain",
    ):
        assert words in out


def test_show_hides_the_path_and_the_query_of_a_hook_url(policy_path: Path, run: Run) -> None:
    policy_path.write_text(f"{SMALL}notify: [{{url: 'https://a.example:8443/T0P?key=SECRET'}}]\n")
    shown = run("check", "--show").out

    assert ("T0P" in shown, "SECRET" in shown) == (False, False)
    # The output is refused as a policy: otherwise the relay would send notices to another URL.
    with pytest.raises(PolicyError, match="expected a URL"):
        parse_policy(shown.encode(), policy_path)


@pytest.fixture
def edited(policy_path: Path) -> Path:
    write_policy(policy_path.parent, LIMITED)
    (policy_path.parent / "edited.yaml").write_text(LIMITED.replace("messages: 3", "messages: 1"))
    return policy_path.parent / "edited.yaml"


def test_plan_tells_what_an_edit_would_do(edited: Path, run: Run) -> None:
    with relay_up(edited.parent, LIMITED) as up:
        up.accept()
        up.do(up.relay.account.throttle.call(lambda it: it.reserve([Request(1)] * 2)))
        found = json.loads(run("plan", "--json", str(edited)).out)
        out = run("plan", str(edited)).out

    (over,) = found["over"]
    assert (over["limit"], over["used"]) == ("1 messages per 1h", 2)
    assert "exceeded at once: isp: 1 messages per 1h: 2 of 1 used, nothing goes until 20" in out
    assert "in force: all have gone in 0s" in out
    assert "edited:   all have gone in" in out


def test_plan_tells_of_a_limit_for_each_key_that_mail_without_keys_exceeds(edited: Path, run: Run) -> None:
    of_each = LIMITED.replace("per: 1h", "per: 1h, for_each: sender")
    charged(parse_policy(LIMITED.encode(), edited), [1, 1])
    charged(parse_policy(of_each.encode(), edited), [1])
    edited.write_text(of_each.replace("messages: 3", "messages: 1"))
    with relay_up(edited.parent, LIMITED) as up:
        # The relay reads the history at its first decision.
        up.do(up.relay.account.throttle.call(Throttle.flush))
        (over,) = json.loads(run("plan", "--json", str(edited)).out)["over"]
    assert (over["limit"], over["used"]) == ("1 messages per 1h for each sender", 2)


def test_plan_of_another_history_forecasts_nothing_for_it(edited: Path, run: Run) -> None:
    edited.write_text(LIMITED.replace("    limits:", "    history: elsewhere\n    limits:"))
    with relay_up(edited.parent, LIMITED) as up:
        up.accept()
        out = run("plan", str(edited)).out
    assert "edited:   unknown: stop: its history is read once the edit is in force" in out


def test_hash_password_prints_a_line_for_a_users_file(tmp_path: Path) -> None:
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
def test_hash_password_exits_64_for_what_sasl_or_a_users_file_cannot_hold(name: str, password: bytes) -> None:
    ran = forked("hash-password", name, given=password)
    assert (ran.returncode, ran.stdout, b"hunter2" in ran.stderr) == (os.EX_USAGE, b"", False)
