"""Routes of a policy: which route each recipient takes."""

from pathlib import Path

import pytest

from relay.mail.envelope import Envelope
from relay.policy.differences import policy_text
from relay.policy.lane import sorter_of
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from tests.unit.policy.examples import SMALL
from tests.unit.policy.reading import parse


def policy(*routes: str) -> Policy:
    lines = "".join(f"  - {route}\n" for route in routes)
    text = f"""spool: /spool
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams:
  isp: {{host: isp.example, limits: []}}
  ses: {{host: ses.example, limits: []}}
routes:
{lines}"""
    return parse_policy(text.encode(), Path("/policy.yaml"))


def test_each_recipient_takes_the_first_route_that_matches() -> None:
    asked = policy(
        "{recipient_domain: ['*.de', example.org], user: 'app-*', upstreams: [ses]}",
        "{recipients_above: 3, upstreams: [ses, isp]}",
        "{upstreams: [isp, ses], failover_after: 1m}",
    )
    sorter = sorter_of(asked.lanes, asked.routes)

    def routes(*recipients: str, user: str | None = None) -> list[tuple[tuple[str, ...], list[int] | None]]:
        envelope = Envelope("a@x", recipients, 0, "h[192.0.2.1]", "h", "ESMTPA", user)
        found = sorter.sort(envelope, lambda: pytest.fail("nothing asks for a header"))
        return [
            (part.route.upstreams, None if part.indices is None else sorted(part.indices))
            for part in found.parts
            if part.route is not None
        ]

    isp, ses = ("isp", "ses"), ("ses",)
    assert routes("a@x.de") == [(isp, None)]
    assert routes("a@x.de", "b@EXAMPLE.org", user="APP-1") == [(ses, None)]
    assert routes("a@x.de", "b@x.com", "c@y.DE", user="app-1") == [(ses, [0, 2]), (isp, [1])]
    assert routes("a@a", "b@b", "c@c", "d@d") == [(("ses", "isp"), None)]
    assert (
        sorter.sort(Envelope("", ("a@x",), 0, "local", "", "local"), lambda: b"").parts[0].route is not None
    )


def test_routes_that_rewrite_otherwise_divide_a_message() -> None:
    made = policy(
        "{recipient_domain: one.example, upstreams: isp, rewrite: a@x.example}",
        "{upstreams: isp, rewrite: '@x.example'}",
    )
    envelope = Envelope("m@h.lan", ("r@one.example", "r@two.example"), 0, "", "", "")
    parts = sorter_of(made.lanes, made.routes).sort(envelope, lambda: b"").parts

    assert [part.rewriting and part.rewriting.rule for part in parts] == ["a@x.example", "@x.example"]
    assert "rewrite: '@x.example'" in policy_text(made)


def test_reports_leave_by_upstreams_of_their_own() -> None:
    good = parse(SMALL + "  ses: {host: ses.example, limits: []}\nreports: {upstreams: ses}\n")

    assert [route.upstreams for route in good.routes] == [("ses",), ("isp",)]
    assert good.upstreams_of_reports == ("ses",)
