"""Counts of listener processes add up, and nothing that a process sends can break them."""

import io
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.listener.ports import Observer
from relay.mail.envelope import Envelope, QueueId
from relay.telemetry.event_table import Level
from relay.telemetry.events import Events
from relay.telemetry.listener_counts import ListenerCounts, ListenerObserver, OneListener
from tests.fakes.clock import FakeClock

HERE, THERE = "127.0.0.1:2525", "[::1]:2525"
CLIENT = "mail.example.org[192.0.2.1]"


def counted(counts: ListenerCounts) -> dict[str, tuple[OneListener, int]]:
    return {listener: (one, open_now) for listener, one, open_now in counts}


happenings = st.lists(
    st.one_of(
        st.tuples(st.just("opened"), st.sampled_from([HERE, THERE])),
        st.tuples(st.just("rejected"), st.sampled_from([HERE, THERE]), st.sampled_from(["rcpt", "zz"])),
        st.tuples(st.just("accepted"), st.sampled_from([HERE, THERE]), st.integers(0, 10**11)),
        st.tuples(st.just("send")),
    ),
    max_size=20,
)


@given(happenings)
def test_counts_that_come_in_deltas_are_the_counts_that_were_made(did: list[tuple[str | int, ...]]) -> None:
    child, parent, oracle = (ListenerCounts([HERE, THERE]) for _ in range(3))
    for act in [*did, ("send",)]:
        match act:
            case ("send",):
                parent.add_delta(json.loads(json.dumps(child.take_delta())), "child")
            case ("opened", str(listener)):
                child.opened(listener)
                oracle.opened(listener)
            case ("rejected", str(listener), str(phase)):
                child.rejected(listener, phase, "550")
                oracle.rejected(listener, phase, "550")
            case ("accepted", str(listener), int(commit_ns)):
                for counts in (child, oracle):
                    counts.accepted(listener, recipients=2, size_bytes=7, commit_ns=commit_ns)

    for listener, (one, open_now) in counted(oracle).items():
        theirs, their_open = counted(parent)[listener]
        assert their_open == open_now
        theirs.open = one.open
        assert theirs == one


def test_the_open_connections_of_a_dead_process_are_closed() -> None:
    child, parent = ListenerCounts([HERE]), ListenerCounts([HERE])
    child.opened(HERE)
    child.opened(HERE)
    child.closed(HERE)
    parent.opened(HERE)
    parent.add_delta(child.take_delta(), "child")
    assert counted(parent)[HERE][1] == 2

    parent.drop_source("child")

    assert counted(parent)[HERE][1] == 1
    assert counted(parent)[HERE][0].connections == 3


@pytest.mark.parametrize("code", ["250", "55", "5500", "5x0", "\u0665\u0665\u0660", ""])
def test_labels_have_a_bounded_number_of_values(code: str) -> None:
    counts = ListenerCounts([HERE])
    before = len(counted(counts)[HERE][0].rejects)

    for number in range(100):
        counts.rejected(HERE, f"phase {number}", code)

    assert len(counted(counts)[HERE][0].rejects) == before + 1
    assert counted(counts)[HERE][0].rejects["other other"] == 100


def bad_deltas() -> Iterator[object]:
    good = ListenerCounts([HERE]).take_delta()
    yield None
    yield [1, 2]
    yield {HERE: 7}
    yield {HERE: good[HERE] | {"messages": -1}}
    yield {HERE: good[HERE] | {"commits": [1]}}
    yield {"192.0.2.9:25": good[HERE]}


@pytest.mark.parametrize("delta", list(bad_deltas()))
def test_what_is_no_delta_adds_nothing(delta: object) -> None:
    counts = ListenerCounts([HERE])

    with pytest.raises(ValueError, match=r"delta|validation error"):
        counts.add_delta(delta, "child")

    assert counted(counts)[HERE] == counted(ListenerCounts([HERE]))[HERE]


def test_the_observer_tells_the_log_and_counts() -> None:
    log, counts = io.StringIO(), ListenerCounts([HERE])
    observer: Observer = ListenerObserver(Events(log, "text", FakeClock(), level=Level.DEBUG), counts)
    envelope = Envelope("ann@example.org", ("a@x", "b@y"), 0, CLIENT, "mail", "ESMTP")

    observer.connection_opened(HERE, CLIENT)
    observer.refused(HERE, CLIENT, "rcpt", "550 5.7.1 relaying denied", None)
    observer.accepted(HERE, QueueId("0123456789abcdef"), envelope, "<1@x>", size_bytes=77, commit_ns=1_000)
    observer.fault(HERE, CLIENT, ValueError("odd"))
    observer.connection_closed(HERE, CLIENT, "quit")

    one, open_now = counted(counts)[HERE]
    assert (one.connections, open_now, one.messages, one.recipients, one.size_bytes, one.faults) == (
        (1, 0, 1, 2, 77, 1)
    )
    assert one.rejects["rcpt 550"] == 1
    told = log.getvalue()
    assert f"NOQUEUE: reject: RCPT from {CLIENT}: 550 5.7.1 relaying denied; listener={HERE}" in told
    assert "0123456789abcdef: from=<ann@example.org>, size=77, nrcpt=2" in told
    assert f"fault in listener {HERE}: ValueError: odd (client {CLIENT})" in told
    assert f"disconnect from {CLIENT} on {HERE}: quit" in told
