"""`relay explain-reply` and its page."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.policy.shipped import standard_rules
from tests.unit.cli.control import code_of
from tests.unit.policy.examples import SMALL

Explain = Callable[..., tuple[int, str, str]]


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Explain:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELAY_POLICY", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = code_of("explain-reply", *arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_verdict_rule_source_and_what_follows_are_told(explain: Explain) -> None:
    code, out, _ = explain("auth", "550 Too many messages. Try again in 92 seconds.")

    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "verdict  pause"
    assert lines[1] == "by       the wording"
    assert lines[2].startswith("rule     verdicts.yaml:")
    assert lines[3].startswith("source   ")
    assert lines[4] == "then     the upstream rests; every message stays as it is, no attempt, no age"
    assert lines[5] == "wait     1m 32s, as the reply asks"


UNKNOWN = "550 Invalid recipient"
"""OpenSMTPD's words (lka_session.c), for one whom it does not know, and for one whom we may not name."""


def test_a_refusal_that_the_shield_doubts_is_told_as_the_relay_takes_it(explain: Explain) -> None:
    code, out, _ = explain("rcpt", UNKNOWN)

    assert code == 0
    assert out.startswith("verdict  bounce recipient\nby       the first digit: no rule knows this refusal\n")
    assert "\nthen     this recipient is tried again after a back-off; it expires after `lifetime`\n" in out
    assert "\nshield   doubts it: it fails if it is refused again after other mail went through\n" in out
    assert "\nshield   10 alike of different senders stop the upstream" in out


def test_an_owners_rule_is_told_with_file_and_line(explain: Explain, tmp_path: Path) -> None:
    text = (
        SMALL
        + "    verdicts:\n      - {code: 4xx, verdict: defer message}\n      - {text: quota, verdict: stop}\n"
    )
    (tmp_path / "policy.yaml").write_text(text + "  two: {host: smtp.gmail.com, limits: []}\n")

    code, out, _ = explain("mail", "550 quota")
    assert code == 0
    assert "verdict  stop\nby       your rule\nrule     policy.yaml:12: upstreams.isp.verdicts[1]\n" in out

    code, out, _ = explain("eod", "450 4.2.1 Peak SMTP relay limit exceeded", "--upstream", "two")
    assert "rule     providers.yaml:" in out
    assert "wait     10m at least, as the rule says" in out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["mail"],
        ["mail", ""],
        ["mail", "hello"],
        ["mail", "999 no"],
        ["nowhere", "550 no"],
        ["mail", "550 no", "--upstream", "isp"],
    ],
)
def test_what_is_no_phase_or_no_reply_is_a_wrong_call(explain: Explain, arguments: list[str]) -> None:
    code, out, err = explain(*arguments)

    assert code in (os.EX_USAGE, os.EX_CONFIG)
    assert out == ""
    assert err


def test_the_table_has_each_shipped_rule_with_its_source(explain: Explain) -> None:
    code, out, _ = explain("--table")

    assert code == 0
    assert all(rule.source.replace("|", "\\|") in out for rule in standard_rules())
