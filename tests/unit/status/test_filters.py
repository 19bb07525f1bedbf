"""Filters, sort orders and summaries of messages that an operator lists."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.queue.queued import RECIPIENTS_SHOWN
from relay.status.filters import AGES, SORTS, By, Filters, Summary, arranged
from relay.status.snapshot import MessageView, QueueState
from tests.fakes.snapshots import a_message

LONG = f"{'x' * 60}.{'y' * 60}.example"
ADDRESSES = st.builds(
    "{}@{}".format,
    st.sampled_from(["ann", "bob", "list-1", "list-2"]),
    st.sampled_from(["here.example", "sub.here.example", "there.example", "büro.example", LONG]),
)
PATTERNS = st.sampled_from(["ann@here.example", "@there.example", "list-*@*", "ANN@Here.Example", f"@{LONG}"])
DOMAINS = st.sampled_from(["here.example", "*.here.example", "xn--bro-hoa.example", LONG, "*.example"])


def to(recipients: list[str], **others: Any) -> MessageView:
    return replace(a_message(), recipients=tuple(recipients), recipients_left=len(recipients), **others)


@given(
    st.lists(ADDRESSES, min_size=1, max_size=8),
    st.lists(PATTERNS, max_size=2),
    st.lists(DOMAINS, max_size=2),
    st.sampled_from(["", "ann@", "LIST-1@there.example", "bü", a_message().queue_id[3:9]]),
)
def test_filters_that_do_not_need_recipients_match_without_those_that_memory_lacks(
    recipients: list[str], patterns: list[str], domains: list[str], text: str
) -> None:
    filters = Filters(recipients=tuple(patterns), domains=tuple(domains), text=text)
    message = to(recipients)
    in_memory = replace(message, recipients=message.recipients[:RECIPIENTS_SHOWN])

    assert filters.need_recipients or filters.match(in_memory) == filters.match(message)


@pytest.mark.parametrize(
    ("filters", "others"),
    [
        (Filters(senders=("@Here.Example",)), {"reverse_path": "a@here.example"}),
        (Filters(senders=("<>",)), {"reverse_path": ""}),
        (Filters(users=("pri*",)), {"user": "printer"}),
        (Filters(clients=("192.0.2.0/24",)), {"client": "unknown[192.0.2.7]"}),
        (Filters(clients=("*.Example.org",)), {"client": "mail.example.org[10.0.0.1]"}),
        (Filters(lanes=("lists", "bulk")), {"lane": "bulk"}),
        (Filters(upstreams=("isp",)), {"upstream": "isp"}),
        (Filters(states=(QueueState.HELD,)), {"state": QueueState.HELD}),
        (Filters(size_bytes=2000), {"size_bytes": 2000}),
        (Filters(older_ns=2 * SECOND_NS), {"age_ns": 2 * SECOND_NS}),
        (Filters(reason="MAILBOX full"), {"reason": "452 4.2.2 Mailbox full"}),
        (Filters(reason="pause"), {"held_by": "pause: 421 no"}),
    ],
)
def test_each_filter_matches_its_messages_and_no_others(filters: Filters, others: dict[str, Any]) -> None:
    other: dict[str, Any] = {
        "reverse_path": "a@elsewhere.example", "user": None, "client": "local", "lane": "", "upstream": "ses",
        "state": QueueState.DEFERRED, "size_bytes": 1999, "age_ns": 2 * SECOND_NS - 1, "reason": "",
        "held_by": "back-off",
    }  # fmt: skip

    assert filters.match(to(["b@there.example"], **{**other, **others}))
    assert not filters.match(to(["b@there.example"], **other))


def test_each_sort_order_begins_with_what_an_operator_looks_for() -> None:
    views = [
        replace(a_message(), arrival_at_ns=at, size_bytes=at, recipients_left=left, eta_at_ns=eta)
        for at, left, eta in ((2, 1, None), (1, 9, 2), (3, 1, 1))
    ]

    assert [len(arranged(views, sort, 2)) for sort in SORTS] == [2] * len(SORTS)
    firsts = {sort: arranged(views, sort, None)[0].arrival_at_ns for sort in ("", *SORTS[:4], "eta")}

    assert firsts == {"": 2, "arrival": 1, "newest": 3, "size": 3, "recipients": 1, "eta": 3}


@given(
    st.lists(st.tuples(st.lists(ADDRESSES, min_size=1, max_size=5), st.integers(0, 3000)), max_size=8),
    st.sampled_from(list(By)),
)
def test_a_summary_adds_up_to_all_messages(mails: list[tuple[list[str], int]], by: By) -> None:
    adding = Summary(by)
    adding.add(to(each, reverse_path=each[0], age_ns=minutes * 60 * SECOND_NS) for each, minutes in mails)
    total, *rows = adding.rows()

    assert (total.key, total.messages) == (None, len(mails))
    assert all(sum(row.messages_by_age) == row.messages for row in (total, *rows))
    assert total.messages_by_age[-1] == sum(minutes >= AGES[-1] for _, minutes in mails)
    assert sum(row.recipients for row in rows) == total.recipients == sum(len(each) for each, _ in mails)
    if by is not By.DOMAIN:
        assert sum(row.messages for row in rows) == total.messages
    assert [row.messages for row in rows] == sorted((row.messages for row in rows), reverse=True)
    assert adding.rows(1) == [total, *rows[:1]]
