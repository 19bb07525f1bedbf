"""Filters on a real queue: a listing is the whole one filtered, and a verb acts on what it lists."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.control.operations import ABSENT, BUSY, CHANGED, OK, UNCHANGED, NotDone
from relay.mail.address import comparable
from relay.mail.envelope import QueueId
from relay.queue.queued import State
from relay.spool.interface import INLINE_BYTES
from relay.status.filters import By, Filters, Wanted
from relay.status.snapshot import MessageView, QueueState
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of

DOMAINS = ("x.example", "y.example", "sub.x.example")
ADDRESSES = st.builds("{}@{}".format, st.sampled_from(["a", "b", "C"]), st.sampled_from(DOMAINS))
MAIL = st.tuples(ADDRESSES, st.lists(ADDRESSES, min_size=1, max_size=6), st.booleans())
FILTERS = st.builds(
    Filters,
    senders=st.sampled_from([(), ("@x.example",), ("a@y.example", "c@x.example")]),
    recipients=st.sampled_from([(), ("b@x.example",), ("*@sub.*",), ("C@y.example", "@sub.x.example")]),
    domains=st.sampled_from([(), ("x.example",), ("*.example",), ("sub.x.example", "z.example")]),
    states=st.sampled_from([(), (QueueState.HELD,), (QueueState.WAITING, QueueState.DEFERRED)]),
)


def is_one(patterns: tuple[str, ...], address: str) -> bool:
    """Match by another way than the relay: these few patterns, spelled out."""
    _, _, domain = address.partition("@")
    return any(
        comparable(address) == comparable(pattern)
        or (pattern[0] == "@" and pattern[1:] == domain)
        or (pattern == "*@sub.*" and domain.startswith("sub."))
        for pattern in patterns
    )


def fits(filters: Filters, view: MessageView, sender: str, recipients: list[str]) -> bool:
    domains = {address.partition("@")[2] for address in recipients}
    return (
        (not filters.senders or is_one(filters.senders, sender))
        and (not filters.recipients or any(is_one(filters.recipients, each) for each in recipients))
        and (not filters.domains or "*.example" in filters.domains or bool(domains & set(filters.domains)))
        and (not filters.states or view.state in filters.states)
    )


async def a_relay(folder: Path, mails: list[tuple[str, list[str], bool]]) -> tuple[Relay, list[QueueId]]:
    relay = Relay(policy_of(folder, 1))
    ids = [relay.accept(*recipients, sender=sender) for sender, recipients, _ in mails]
    await relay.sender.read()
    await relay.operator.act("hold", [queue_id for queue_id, mail in zip(ids, mails, strict=True) if mail[2]])
    return relay, ids


@settings(max_examples=settings().max_examples // 3)  # each opens a spool
@given(st.lists(MAIL, max_size=6), FILTERS, st.sampled_from(["", "size", "sender", "newest"]))
def test_a_filtered_listing_is_the_whole_one_filtered(
    mails: list[tuple[str, list[str], bool]], filters: Filters, sort: str
) -> None:
    async def law() -> None:
        with tempfile.TemporaryDirectory() as folder:
            relay, ids = await a_relay(Path(folder), mails)
            of = dict(zip(ids, mails, strict=True))
            whole = await relay.operator.queue(Wanted(sort=sort))
            wanted = [view for view in whole if fits(filters, view, *of[view.queue_id][:2])]

            assert await relay.operator.queue(Wanted(filters, sort)) == wanted
            assert await relay.operator.queue(Wanted(filters, sort, 2)) == wanted[:2]
            total, *rows = await relay.operator.summary(filters, By.SENDER)
            assert (total.messages, sum(row.messages for row in rows)) == (len(wanted), len(wanted))
            await relay.sender.stop()

    asyncio.run(law())


@settings(max_examples=settings().max_examples // 3)  # each opens a spool
@given(
    st.lists(MAIL, min_size=1, max_size=6),
    FILTERS,
    st.sampled_from(["hold", "release", "delete"]),
    st.lists(st.sampled_from(["hold", "release", "delete", "seize"]), max_size=3),
)
def test_a_verb_acts_on_what_was_listed_and_tells_the_rest(
    mails: list[tuple[str, list[str], bool]], filters: Filters, verb: str, meanwhile: list[str]
) -> None:
    """Between the listing and the verb, some of what was listed changes."""

    async def law() -> None:
        with tempfile.TemporaryDirectory() as folder:
            relay, _ = await a_relay(Path(folder), mails)
            queue, operator = relay.sender.queue, relay.operator
            listed = [view.queue_id for view in await operator.queue(Wanted(filters))]
            for queue_id, change in zip(listed, meanwhile, strict=False):
                if change == "seize":
                    queue.seize(queue_id)
                else:
                    await operator.act(change, [queue_id])  # type: ignore[arg-type]  # one of the verbs
            before = {queued.queue_id: queued.state for queued in queue}

            results = await operator.act(verb, listed, filters.states)  # type: ignore[arg-type]  # as above

            after = {queued.queue_id: queued.state for queued in queue}
            assert list(results) == listed
            for queue_id, result in results.items():
                was = before.get(queue_id)
                is_meant = was is not None and (not filters.states or QueueState(was.value) in filters.states)
                assert (result == ABSENT) == (was is None)
                assert (result == CHANGED) == (was is not None and not is_meant)
                assert (result == BUSY) == (was is State.ACTIVE and is_meant)
            touched = {queue_id for queue_id, was in before.items() if after.get(queue_id) is not was}
            assert touched == {queue_id for queue_id, result in results.items() if result == OK}
            assert set(results.values()) <= {OK, UNCHANGED, ABSENT, BUSY, CHANGED}
            await relay.sender.stop()

    asyncio.run(law())


async def test_a_listing_shows_only_recipients_that_are_left(tmp_path: Path) -> None:
    script = Script(rcpt=turns("250 ok", *["451 4.2.1 later"] * 3))
    async with Smarthost(script) as host:
        policy = policy_of(tmp_path, host.port, rest="retry: {min: 1h, max: 1h, lifetime: 1d}")
        async with Relay(policy) as relay:
            relay.accept("one@x.example", "two@x.example", "three@x.example", "four@y.example")
            await relay.until(lambda: [each.state for each in relay.sender.queue] == [State.DEFERRED])

            (view,) = await relay.operator.queue()
            assert view.recipients == ("two@x.example", "three@x.example", "four@y.example")
            assert await relay.operator.queue(Wanted(Filters(recipients=("one@x.example",)))) == []
            (found,) = await relay.operator.queue(Wanted(Filters(recipients=("four@y.example",))))
            assert found.queue_id == view.queue_id


def damage(path: Path) -> None:
    stored = bytearray(path.read_bytes())
    stored[-10] ^= 1
    path.write_bytes(stored)


async def test_long_content_that_is_damaged_is_not_told_as_whole(tmp_path: Path) -> None:
    relay = Relay(policy_of(tmp_path, 1))
    queue_id = relay.accept(content=CONTENT + b"x\r\n" * INLINE_BYTES)
    await relay.sender.read()
    damage(next(relay.policy.spool.glob(f"cur/*/{queue_id}")))

    with pytest.raises(NotDone):
        [chunk async for chunk in relay.operator.content(queue_id)]
    await relay.sender.stop()
