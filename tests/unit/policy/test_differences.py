"""An edit is told in words: each key or limit once, nothing secret, and nothing left out."""

import pytest

from relay.policy.differences import differences
from tests.unit.policy.examples import SMALL, with_upstream
from tests.unit.policy.reading import parse

HOST = "host: smtp.example.net"
HISTORY = "/etc/relay/history/smtp.example.net"
OTHER_HISTORY = "/etc/relay/other/history/smtp.example.net"
EVERY_EVENT = (
    "bounced, expired, paused, stopped, resumed, sender_paused, route_diverted, route_down, route_restored"
)


def told(old: str, new: str) -> list[str]:
    restart = " (restart)"
    found = differences(parse(old), parse(new))
    return [f"{each.sign} {each.words}{restart * each.needs_restart}" for each in found]


def limits(*each: str) -> str:
    return with_upstream(HOST, f"limits: [{', '.join(each)}]")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (SMALL, SMALL + "# a comment\n", []),
        (
            SMALL,
            SMALL.replace("messages: 8", "messages: 5"),
            ["~ isp: 8 → 5 messages in any 1m"],
        ),
        (SMALL, SMALL.replace("per: 1m", "per: 2h"), ["~ isp: 8 messages in any 1m → 8 messages in any 2h"]),
        (
            limits("{messages: 8, per: 1m}", "{recipients: 9, per: 1h}"),
            limits("{messages: 8, per: 1m}", "{recipients: 9, per: 24h, for_each: sender}"),
            ["- isp: 9 recipients in any 1h", "+ isp: 9 recipients in any 24h for each sender"],
        ),
        (SMALL, limits(), ["- isp: 8 messages in any 1m"]),
        (
            SMALL,
            SMALL + "retry: {min: 1m, warn_after: null}\nreports: {per_hour: 5}\n",
            ["~ retry.min: 5m → 1m", "~ retry.warn_after: 4h → null", "~ reports.per_hour: 60 → 5"],
        ),
        (
            SMALL,
            SMALL.replace("spool: spool", "spool: other/place"),
            [
                "~ spool.path: /etc/relay/spool → /etc/relay/other/place (restart)",
                f"~ isp.history: {HISTORY} → {OTHER_HISTORY} (restart)",
            ],
        ),
        (
            SMALL,
            SMALL.replace("upstreams:\n", "upstreams:\n  ses: {host: ses.example, limits: []}\n"),
            ["~ mail goes through: isp → ses", "+ upstream: ses, ses.example port 587"],
        ),
        # With its account, it is the same under another name.
        (
            SMALL,
            SMALL.replace("  isp:", "  provider:"),
            ["~ mail goes through: isp → provider", "~ name of an upstream: isp → provider"],
        ),
        (
            SMALL + "notify: [{url: 'https://hooks.example/secret/path'}]\n",
            SMALL + "notify: [{url: 'https://hooks.example/secret/path', events: [stopped]}]\n",
            [
                f"- notify: https://hooks.example told of {EVERY_EVENT}",
                "+ notify: https://hooks.example told of stopped",
            ],
        ),
    ],
)
def test_an_edit_is_told_in_words(old: str, new: str, words: list[str]) -> None:
    assert told(old, new) == words
