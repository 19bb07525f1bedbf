"""What a snapshot tells scripts, the command line and strangers."""

import json
from dataclasses import replace

import pytest

from relay.status.snapshot import QueueState, UpstreamState, public, to_json
from relay.verdicts.account import Health
from tests.fakes.snapshots import a_limit, a_snapshot, an_upstream


def test_json_has_rfc_3339_and_seconds_and_every_state() -> None:
    shown = json.loads(json.dumps(to_json(a_snapshot())))

    assert shown["at"] == "2025-10-09T08:53:20.000Z"
    assert list(shown["queue"]) == [state.value for state in QueueState]
    assert shown["queue"]["waiting"]["oldest_age_seconds"] == 90.0
    (upstream,) = shown["upstreams"]
    assert (upstream["drained_at"], upstream["drain_seconds"]) == ("2025-10-09T09:43:20.000Z", 3000.0)
    assert upstream["proving_after"] is None
    (limit,) = upstream["limits"]
    assert (limit["used"], limit["count"], limit["opens_at"]) == (8, 8, "2025-10-09T08:53:40.000Z")
    assert limit["opens_in_seconds"] == 20.0
    assert shown["totals"]["relayed"] == 190
    (stopped,) = to_json(a_snapshot(upstream=an_upstream(state=UpstreamState.STOPPED)))["upstreams"]
    assert (stopped["drained_at"], stopped["drain_seconds"]) == (None, None)


@pytest.mark.parametrize(
    ("health", "is_tried", "is_well", "words"),
    [
        (Health.USED, False, None, "not tried yet"),
        (Health.PROVING, True, None, "proving, one message first"),
        (Health.USED, True, True, "open"),
    ],
)
def test_an_open_upstream_is_well_only_once_something_shows_it(
    health: Health, *, is_tried: bool, is_well: bool | None, words: str
) -> None:
    upstream = replace(an_upstream(), health=health, is_tried=is_tried)
    (shown,) = to_json(a_snapshot(upstream=upstream))["upstreams"]

    assert (upstream.is_well, upstream.state_words) == (is_well, words)
    assert (shown["state"], shown["health"]) == ("open", health.value)


def test_the_public_snapshot_names_no_address_and_no_key_of_a_limit() -> None:
    for address in [
        "bob@example.com",
        "<bob@example.com>",
        '"bob,"@example.com',
        "<bob+x@[192.0.2.1]>",
        "bob@例.jp",
    ]:
        because = f"450 4.4.5 {address}: over quota"
        paused = an_upstream(state=UpstreamState.PAUSED, because=because)
        limit = replace(a_limit(), for_each="user", key="bob")
        upstream = replace(paused, held_by=because, proving_after=because, limits=(limit,))

        shown = json.dumps(to_json(public(a_snapshot(upstream=upstream, refusing_because=because))))

        assert "450 4.4.5 <address>: over quota" in shown
        assert "@" not in shown
        assert "bob" not in shown
