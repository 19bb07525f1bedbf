"""An edit is told by its keys: each once, nothing secret, and what needs a restart."""

import pytest

from relay.policy.source import changes_needing_restart, differences
from tests.unit.policy.examples import SMALL, with_upstream
from tests.unit.policy.reading import parse

HOST = "host: smtp.example.net"


def told(old: str, new: str) -> list[str]:
    restart = " (restart)"
    found = differences(parse(old), parse(new))
    return [f"{each.sign} {each.words}{restart * each.needs_restart}" for each in found]


def limits(*each: str) -> str:
    return with_upstream(HOST, f"limits: [{', '.join(each)}]")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (SMALL, SMALL + "# a comment\nretry: {min: 300s}\n", []),
        (
            limits("{messages: 8, per: 1m}", "{recipients: 9, per: 1h}"),
            limits("{messages: 8, per: 1m}", "{recipients: 9, per: 24h, for_each: sender}"),
            [
                "- upstreams.isp.limits: {recipients: 9, per: 1h}",
                "+ upstreams.isp.limits: {recipients: 9, per: 24h, for_each: sender}",
            ],
        ),
        (
            SMALL,
            SMALL + "retry: {min: 1m, warn_after: null}\nreports: {per_hour: 5}\nhostname: a.example\n",
            [
                "~ retry.min: 5m → 1m",
                "~ retry.warn_after: 4h → null",
                "~ reports.per_hour: 60 → 5",
                "+ hostname: a.example (restart)",
            ],
        ),
        (
            SMALL,
            SMALL.replace("spool: spool", "spool: other/place"),
            ["~ spool.path: /etc/relay/spool → /etc/relay/other/place (restart)"],
        ),
        (
            SMALL + "notify: [{url: 'https://hooks.example/T0P/SECRET', events: bounced}]\n",
            SMALL + "notify: [{url: 'https://hooks.example/T0P/SECRET', events: [stopped]}]\n",
            [
                "- notify: {url: 'https://hooks.example/…', events: [bounced], timeout: 10s}",
                "+ notify: {url: 'https://hooks.example/…', events: [stopped], timeout: 10s}",
            ],
        ),
    ],
)
def test_an_edit_is_told_in_words(old: str, new: str, words: list[str]) -> None:
    assert told(old, new) == words


def test_the_first_upstream_is_told_and_what_needs_a_restart() -> None:
    edited = SMALL.replace("upstreams:\n", "upstreams:\n  ses: {host: s.e, limits: []}\n")

    first, second = told(SMALL, edited)

    assert first == "~ first of upstreams: isp → ses"
    assert second.startswith("+ upstreams.ses: {host: s.e")
    assert changes_needing_restart(parse(SMALL), parse(edited)) == []
    assert changes_needing_restart(parse(SMALL), parse(SMALL.replace("127.0.0.0/8", "127.0.0.1"))) == [
        "listen"
    ]
