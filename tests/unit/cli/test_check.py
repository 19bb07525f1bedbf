"""`relay check`: every fault and 78, or a summary and 0."""

from collections.abc import Callable
from pathlib import Path

import pytest

from relay.cli.main import main
from relay.policy.faults import PolicyError
from relay.policy.source import parse_policy
from tests.unit.cli.terminal import forked
from tests.unit.policy.examples import INTERFACE, SMALL, with_upstream

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
    places = [line.removeprefix(f"{path}:").split(": ")[:2] for line in err.splitlines()]
    assert places == [["1:1", "?"], ["1:1", "spool"], ["9:20", "upstreams.isp.limits[0].messages"]]
    assert "did you mean spool?" in err


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
    ran = forked("check", str(path), CREDENTIALS_DIRECTORY="")

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"note: the credential of its password was not checked" in ran.stdout
    # Whoever takes the key for the password's own place writes the password there.
    assert b"hunter2" not in ran.stdout


def test_a_good_policy_is_summed_up(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    more = "  two: {host: '::1', tls: none, port: 25, history: /h, limits: []}\n"
    more += "http: 127.0.0.1:9725\nhostname: a.example\n"
    path.write_text(SMALL + more)
    assert check(str(path)) == (
        0,
        f"""\
{path} is good
spool     {tmp_path}/spool (maildir)
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
""",
        "",
    )


def test_show_hides_what_may_be_secret_in_the_url_of_a_hook(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        f"{SMALL}notify: [{{url: 'https://a.example:8443/T0P?key=SECRET'}}, {{url: 'https://b.example/'}}]\n"
    )

    shown = check("--show", str(path))[1]

    assert "T0P" not in shown
    assert "SECRET" not in shown
    assert "url: https://a.example:8443/…" in shown
    assert "url: https://b.example/" in shown
    # Whoever takes it for a policy is told, rather than that another URL is told of the mail.
    with pytest.raises(PolicyError, match="expected a URL"):
        parse_policy(shown.encode(), path)


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


def test_a_password_in_place_of_a_credentials_name_is_not_shown_in_full_either(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    path = tmp_path / "policy.yaml"
    path.write_text(with_upstream(*CREDENTIAL))
    code, out, _ = check("--show", str(path))
    assert code == 0
    assert "password_credential: …" in out
    assert "hunter2" not in out


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
    path.write_text(
        f"{small}  two: {{host: '::1', tls: none, port: 25, limits: []}}\nhostname: inside\n{more}\n"
    )
    code, out, _ = check(str(path))
    lines = out[out.index("reports ") :].splitlines()
    assert code == 0
    assert len(lines) == len(shown) + 1
    assert all(line.startswith(words) for line, words in zip(lines, shown, strict=False))
    assert lines[-1] == "          note: this host is called inside, without a domain: write hostname"


def test_two_spellings_of_one_host_are_one_account_and_are_told(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        with_upstream("host: Smtp.Example.net.") + "  two: {host: smtp.example.net, limits: []}\n"
    )

    code, out, _ = check(str(path))

    assert code == 0
    assert out.count(f"history {tmp_path}/history/smtp.example.net\n") == 2
    assert "note: the same account as two: both count in one history, each by its own limits" in out
    assert "note: the same account as isp: both count in one history, each by its own limits" in out
