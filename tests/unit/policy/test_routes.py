"""Routes of a policy: what is refused, and where; and which route each recipient takes."""

from pathlib import Path

import pytest

from relay.mail.envelope import Envelope
from relay.policy.differences import policy_text
from relay.policy.faults import PolicyError
from relay.policy.lane import sorter_of
from relay.policy.model import Policy
from relay.policy.source import parse_policy


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


@pytest.mark.parametrize(
    ("routes", "place", "key", "words"),
    [
        (["{user: x, upstreams: [isp]}"], (7, 5), "routes[0]", "the last route must take all mail"),
        (["{upstreams: [isp]}", "{upstreams: [ses]}"], (7, 5), "routes[0]", "the routes behind it take none"),
        (["{upstreams: [isp, gone]}"], (7, 23), "routes[0].upstreams[1]", "no upstream of this name"),
        (["{upstreams: [isp, ses, isp]}"], (7, 28), "routes[0].upstreams[2]", "it is listed before"),
        (["{upstreams: []}"], (7, 17), "routes[0].upstreams", "expected at least one"),
        (["{spill_after: 1h, upstreams: isp}"], (7, 19), "routes[0].spill_after", "needs a second upstream"),
        (["{upstreams: isp, failover_after: 0s}"], (7, 38), "routes[0].failover_after", "above zero"),
        (["{sendr: x, upstreams: isp}"], (7, 6), "routes[0].?", "unknown key"),
        (["{sender: '@x'}"], (7, 5), "routes[0].upstreams", "this key is required"),
        (["{upstreams: isp, rewrite: news}"], (7, 31), "routes[0].rewrite", "one address, or @ and a domain"),
        (
            ["{upstreams: isp, rewrite: '@*.x'}"],
            (7, 31),
            "routes[0].rewrite",
            "one address, or @ and a domain",
        ),
        (["{upstreams: isp, rewrite: ü@x.example}"], (7, 31), "routes[0].rewrite", "one address, or @"),
        (
            ["{upstreams: isp, rewrite: '@-x'}"],
            (7, 31),
            "routes[0].rewrite",
            "one address, or @ and a domain",
        ),
    ],
)
def test_a_fault_is_told_with_its_place(
    routes: list[str], place: tuple[int, int], key: str, words: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        policy(*routes)
    fault = caught.value.errors[0]
    assert ((fault.line, fault.column), fault.key) == (place, key)
    assert words in str(fault)


def test_two_upstreams_of_routes_keep_their_pauses_apart() -> None:
    text = """spool: /spool
listen: [{address: "127.0.0.1:0", clients: [127.0.0.0/8]}]
upstreams:
  isp: {host: isp.example, limits: []}
  again: {host: isp.example, port: 465, tls: implicit, limits: []}
  apart: {host: isp.example, port: 25, history: /history/apart, limits: []}
routes:
  - {upstreams: [isp, %s]}
"""
    with pytest.raises(PolicyError) as refused:
        parse_policy((text % "again").encode(), Path("/policy.yaml"))
    (line,) = str(refused.value).splitlines()
    assert line.startswith("/policy.yaml:8:23: routes[0].upstreams[1]: it shares its history")
    for good in (text % "apart", text.partition("routes")[0]):
        assert "isp" in parse_policy(good.encode(), Path("/policy.yaml")).upstreams


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


@pytest.mark.parametrize(
    ("reports", "place", "words"),
    [
        ("{upstreams: [ses, gone]}", "7:28: reports.upstreams[1]", "the policy has no upstream of this name"),
        ("{upstreams: [ses, ses]}", "7:28: reports.upstreams[1]", "it is listed before"),
        ("{upstreams: twin}", "7:22: reports.upstreams[0]", "it shares its history"),
        ("{upstreams: []}", "7:22: reports.upstreams", "expected at least one"),
        ("{from: postmaster@ü.example}", "7:17: reports.from", "expected one address, in ASCII"),
        ("{from: postmaster}", "7:17: reports.from", "expected one address, in ASCII"),
        ('{from: "<a@b.example>"}', "7:17: reports.from", "expected one address, in ASCII"),
    ],
)
def test_reports_leave_by_known_upstreams_and_as_an_address(reports: str, place: str, words: str) -> None:
    text = """spool: /spool
listen: [{address: "127.0.0.1:0", clients: [127.0.0.0/8]}]
upstreams:
  isp: {host: isp.example, limits: []}
  ses: {host: ses.example, limits: []}
  twin: {host: isp.example, limits: []}
reports: %s
"""
    with pytest.raises(PolicyError) as refused:
        parse_policy((text % reports).encode(), Path("/policy.yaml"))
    assert str(refused.value).startswith(f"/policy.yaml:{place}: {words}")
    good = parse_policy((text % "{upstreams: [ses], from: null}").encode(), Path("/policy.yaml"))
    assert [route.upstreams for route in good.routes] == [("ses",), ("isp",)]
