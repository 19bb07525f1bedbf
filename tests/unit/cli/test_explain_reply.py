"""`relay explain-reply`: what a reply means, and by which rule."""

import os
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run
from tests.unit.policy.examples import SMALL

UNKNOWN = "550 Invalid recipient"
"""OpenSMTPD's words (lka_session.c), for one whom it does not know, and for one whom we may not name."""


@pytest.fixture(autouse=True)
def _without_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELAY_POLICY", raising=False)


def test_verdict_rule_source_and_what_follows_are_told(run: Run) -> None:
    code, out, _ = run("explain-reply", "auth", "550 Too many messages. Try again in 92 seconds.")
    lines = out.splitlines()
    assert code == 0
    assert lines[:2] == ["verdict  pause", "by       the wording"]
    assert lines[2].startswith("rule     verdicts.yaml:")
    assert lines[3].startswith("source   ")
    assert lines[4] == "then     the upstream rests; every message stays as it is, no attempt, no age"
    assert lines[5] == "wait     1m 32s, as the reply asks"


def test_a_refusal_that_the_shield_doubts_is_told_as_the_relay_takes_it(run: Run) -> None:
    out = run("explain-reply", "rcpt", UNKNOWN).out
    assert out.startswith("verdict  bounce recipient\nby       the default for its phase and code\n")
    assert "\nthen     this recipient is tried again after a back-off; it expires after `lifetime`\n" in out
    assert (
        "\nshield   no rule knows its words: it fails if refused again after other mail went through\n" in out
    )
    assert "\nshield   10 alike of different senders stop the upstream" in out


@pytest.mark.parametrize(
    ("reply", "which", "probes"),
    [
        ("535 5.7.8 authentication failed", [], "one message every 1h"),
        ("535 5.7.139 no", ["--host", "smtp.office365.com"], "none: each attempt makes it worse"),
    ],
)
def test_a_stop_says_whether_the_relay_looks_again(
    run: Run, reply: str, which: list[str], probes: str
) -> None:
    out = run("explain-reply", "auth", reply, *which).out
    assert "no rule knows" not in out
    assert f"\nprobe    {probes}\n" in out


def test_an_owners_rule_is_told_with_file_and_line(run: Run) -> None:
    rules = "{code: 4xx, verdict: defer message}", "{text: quota, verdict: stop}"
    owners = "    verdicts:\n" + "".join(f"      - {rule}\n" for rule in rules)
    Path("policy.yaml").write_text(f"{SMALL}{owners}  two: {{host: smtp.gmail.com, limits: []}}\n")

    out = run("explain-reply", "mail", "550 quota").out
    assert "verdict  stop\nby       your rule\nrule     upstreams.isp.verdicts[1]\n" in out
    for which in (["--upstream", "two"], ["--host", "smtp.gmail.com"]):
        out = run("explain-reply", "eod", "450 4.2.1 Peak SMTP relay limit exceeded", *which).out
        assert "rule     providers.yaml:" in out
        assert "wait     10m at least, as the rule says" in out


def test_each_upstream_that_gets_mail_is_asked(run: Run) -> None:
    others = "  two: {host: smtp.gmail.com, limits: []}\n  three: {host: b.example, limits: []}\n"
    Path("policy.yaml").write_text(
        f"{SMALL}{others}routes: [{{sender: a@b.c, upstreams: two}}, {{upstreams: isp}}]\n"
    )
    out = run("explain-reply", "mail", "550 daily sending quota exceeded").out
    assert [line for line in out.splitlines() if line.startswith("of ")] == ["of isp:", "of two:"]


@pytest.mark.parametrize(
    "words",
    [
        *([], ["mail"], ["mail", ""], ["mail", "hello"], ["mail", "999 no"], ["nowhere", "550 no"]),
        ["mail", "550 no", "--upstream", "isp"],
    ],
)
def test_what_is_no_phase_or_no_reply_is_a_wrong_call(run: Run, words: list[str]) -> None:
    code, out, err = run("explain-reply", *words)
    assert code in (os.EX_USAGE, os.EX_CONFIG)
    assert (out, bool(err)) == ("", True)


def test_octets_that_are_no_text_are_taken_as_the_wire_takes_them(run: Run) -> None:
    code, out, _ = run("explain-reply", "auth", "550 Too many messages \udcff. Try again in 92 seconds.")
    assert code == 0
    assert "wait     1m 32s, as the reply asks" in out.splitlines()
