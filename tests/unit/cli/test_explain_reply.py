"""`relay explain-reply`: what a reply means, and by which rule."""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run
from tests.unit.policy.examples import SMALL

UNKNOWN = "550 Invalid recipient"
"""OpenSMTPD (lka_session.c) says so of an unknown recipient, and of one to whom this client may not relay."""


@pytest.fixture(autouse=True)
def _without_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELAY_POLICY", raising=False)


@pytest.mark.parametrize("octets", ["", " \udcff"])
def test_verdict_rule_source_and_consequence_are_printed(run: Run, octets: str) -> None:
    """A reply may hold an octet that is not UTF-8, as on the wire."""
    code, out, _ = run("explain-reply", "auth", f"550 Too many messages{octets}. Try again in 92 seconds.")
    told = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert code == 0
    assert (told["verdict"], told["by"], told["wait"]) == (
        "pause",
        "wording",
        "1m 32s, as the reply asks",
    )
    assert told["rule"].startswith("verdicts.yaml:")
    assert told["source"]


def test_a_refusal_that_the_shield_doubts_is_explained_as_the_relay_acts_on_it(run: Run) -> None:
    out = run("explain-reply", "rcpt", UNKNOWN).out
    assert out.startswith("verdict  bounce recipient\nby       default\n")
    assert "this recipient is tried again after a back-off" in out
    assert "\nshield   no rule matches its text" in out
    assert "\nshield   10 such refusals of different senders stop the upstream" in out


@pytest.mark.parametrize(
    ("reply", "which", "probes"),
    [
        ("535 5.7.8 authentication failed", [], "one message every 1h"),
        ("535 5.7.139 no", ["--host", "smtp.office365.com"], "none: each attempt makes it worse"),
    ],
)
def test_a_stop_says_whether_the_relay_probes(run: Run, reply: str, which: list[str], probes: str) -> None:
    assert f"\nprobe    {probes}\n" in run("explain-reply", "auth", reply, *which).out


def test_an_owners_rule_is_named_and_each_upstream_that_gets_mail_is_explained(run: Run) -> None:
    rules = "{code: 4xx, verdict: defer message}", "{text: quota, verdict: stop}"
    owners = "    verdicts:\n" + "".join(f"      - {rule}\n" for rule in rules)
    others = "  two: {host: smtp.gmail.com, limits: []}\n  three: {host: b.example, limits: []}\n"
    routes = "routes: [{sender: a@b.c, upstreams: two}, {upstreams: isp}]\n"
    Path("policy.yaml").write_text(f"{SMALL}{owners}{others}{routes}")

    out = run("explain-reply", "mail", "550 quota").out
    assert "verdict  stop\nby       operator\nrule     upstreams.isp.verdicts[1]\n" in out
    assert [line for line in out.splitlines() if line.startswith("upstream ")] == [
        "upstream isp:",
        "upstream two:",
    ]
    for which in (["--upstream", "two"], ["--host", "smtp.gmail.com"]):
        out = run("explain-reply", "eod", "450 4.2.1 Peak SMTP relay limit exceeded", *which).out
        assert "rule     providers.yaml:" in out
        assert "wait     10m at least, as the rule says" in out
