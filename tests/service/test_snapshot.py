import json
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from relay.clock import SECOND_NS
from relay.service.snapshot import (
    Ledger,
    QueueCounts,
    QueueState,
    Snapshot,
    UpstreamState,
    detail_to_json,
    drained_at_ns,
    message_to_json,
    public,
    to_json,
)
from tests.fakes.snapshots import AT_NS, a_detail, a_limit, a_message, a_snapshot, an_upstream


def test_json_has_rfc_3339_and_seconds_and_every_state() -> None:
    shown = json.loads(json.dumps(to_json(a_snapshot())))

    assert shown["at"] == "2025-10-09T08:53:20.000Z"
    assert list(shown["queue"]) == [state.value for state in QueueState]
    assert shown["queue"]["waiting"]["oldest_age_seconds"] == 90.0
    (limit,) = shown["upstreams"][0]["limits"]
    assert (limit["used"], limit["count"], limit["opens_at"]) == (8, 8, "2025-10-09T08:53:40.000Z")
    assert limit["opens_in_seconds"] == 20.0
    assert shown["ledger"]["imbalance"] == 0


def test_a_snapshot_survives_the_wire_unchanged() -> None:
    adapter = TypeAdapter(Snapshot)
    snapshot = a_snapshot()

    assert adapter.validate_json(adapter.dump_json(snapshot)) == snapshot


def test_messages_are_json_lines() -> None:
    message = a_message()

    for shown in (message_to_json(message), detail_to_json(a_detail(message))):
        assert "\n" not in json.dumps(shown)
        assert shown["queue_id"] == message.queue_id
        assert shown["recipients"] == ["ann@example.net", "bob@example.com"]


def test_the_ledger_adds_up_or_says_by_how_much_it_does_not() -> None:
    assert Ledger(accepted=10, relayed=4, bounced=2, expired=1, deleted=1, queued=2).imbalance == 0
    assert Ledger(accepted=10, relayed=4, queued=2).imbalance == 4


def test_a_state_that_was_not_counted_is_zero() -> None:
    assert a_snapshot().counts(QueueState.HELD) == QueueCounts()


def test_what_waits_for_a_stopped_upstream_has_no_eta() -> None:
    assert drained_at_ns(an_upstream(state=UpstreamState.STOPPED), AT_NS) is None


def test_a_pause_comes_in_front_of_what_the_limits_take() -> None:
    running = drained_at_ns(an_upstream(), AT_NS)
    paused = drained_at_ns(
        an_upstream(state=UpstreamState.PAUSED, paused_until_ns=AT_NS + 900 * SECOND_NS), AT_NS
    )

    assert running is not None
    assert running > AT_NS
    assert paused == running + 900 * SECOND_NS


def test_with_room_and_nothing_waiting_all_has_gone_now() -> None:
    upstream = an_upstream(limits=(a_limit(used=1, opens_in_s=None),), waiting=0)

    assert drained_at_ns(upstream, AT_NS) == AT_NS


def test_known_openings_make_the_estimate_better() -> None:
    coarse = a_limit(used=2, count=2, opens_in_s=10)
    exact = replace(coarse, openings_at_ns=(AT_NS + 10 * SECOND_NS, AT_NS + 11 * SECOND_NS))

    assert drained_at_ns(an_upstream(limits=(exact,), waiting=2), AT_NS) == AT_NS + 11 * SECOND_NS
    assert drained_at_ns(an_upstream(limits=(coarse,), waiting=2), AT_NS) == AT_NS + 60 * SECOND_NS


@pytest.mark.parametrize(
    "address",
    [
        "bob@example.com",
        "<bob@example.com>",
        '"bob o\'hara, esq"@example.com',
        "<bob+x@[192.0.2.1]>",
        "büro@例.jp",
    ],
)
def test_the_public_snapshot_names_no_address(address: str) -> None:
    because = f"450 4.4.5 {address}: over quota"
    snapshot = a_snapshot(
        upstream=an_upstream(state=UpstreamState.PAUSED, because=because), refusing_because=because
    )

    shown = json.dumps(to_json(public(snapshot)), ensure_ascii=False)

    assert "@" not in shown
    assert "bob" not in shown
    assert "450 4.4.5 <address>: over quota" in shown


def test_the_public_snapshot_does_not_say_whose_a_slot_is() -> None:
    limit = replace(a_limit(), for_each="sender", key="list@here.example")
    snapshot = a_snapshot(upstream=an_upstream(limits=(limit,)))

    assert to_json(snapshot)["upstreams"][0]["limits"][0]["key"] == "list@here.example"
    assert "list@here.example" not in json.dumps(to_json(public(snapshot)))


def test_a_limit_for_each_key_does_not_hold_up_the_estimate_for_all() -> None:
    for_each = replace(a_limit(opens_in_s=3000), for_each="sender", key="a@b.example")
    with_it = an_upstream(limits=(a_limit(), for_each))
    without = an_upstream(limits=(a_limit(),))

    assert drained_at_ns(with_it, AT_NS) == drained_at_ns(without, AT_NS)
