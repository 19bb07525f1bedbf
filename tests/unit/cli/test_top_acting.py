from collections.abc import Collection, Sequence

import pytest

from relay.cli.top.acting import AT_ONCE, Intent, carried_out, planned, takes_verbs
from relay.cli.top.picture import RowKind, Target
from relay.control.operations import BUSY, CHANGED, TABLE, VERBS, Deed, Verb
from relay.mail.envelope import QueueId
from relay.queue.scheduler import State
from relay.status.snapshot import QueueState
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import FIRST, SECOND, a_message

THIRD = QueueId("0000000000000003")
ISP = Target(RowKind.UPSTREAM, "isp")


async def go_on(_through: int) -> bool:
    return True


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_asks_for_the_states_that_it_changes(verb: Verb) -> None:
    row = TABLE[verb]

    assert {State(state.value) for state in row.changes} == {
        state for state, deed in row.deeds.items() if deed in set(Deed) - {Deed.NOTHING}
    }


async def test_retry_means_deferred_messages_only() -> None:
    operations = FakeOperations(
        [
            a_message(FIRST, state=QueueState.DEFERRED),
            a_message(SECOND),
            a_message(THIRD, state=QueueState.HELD),
        ]
    )

    plan = await planned(operations, "retry", ISP)

    assert (plan.queue_ids, plan.recipients) == ((FIRST,), 2)
    assert (
        plan.words() == "retry 1 messages, 2 recipients, of upstream isp (deferred now): to be tried at once"
    )
    assert await carried_out(operations, plan, go_on) == "1 messages: to be tried at once"
    assert operations.asked == [("retry", (FIRST,))]
    assert operations.among == (QueueState.DEFERRED,)


async def test_a_star_in_a_senders_address_is_no_pattern() -> None:
    operations = FakeOperations(
        [a_message(FIRST, reverse_path="a*@x.example"), a_message(SECOND, reverse_path="ab@x.example")]
    )

    plan = await planned(operations, "hold", Target(RowKind.SENDER, "A*@x.example"))

    assert plan.queue_ids == (FIRST,)


async def test_reports_are_those_of_nobody() -> None:
    operations = FakeOperations([a_message(FIRST, reverse_path=""), a_message(SECOND)])

    assert (await planned(operations, "hold", Target(RowKind.SENDER, ""))).queue_ids == (FIRST,)


async def test_nothing_is_said_to_be_done_where_nothing_would_be() -> None:
    plan = await planned(FakeOperations([a_message(FIRST)]), "retry", Target(RowKind.LANE, "lists"))

    assert plan.words() == "nothing to retry: lane lists has no message that is deferred"


def test_no_verb_goes_by_a_reason() -> None:
    assert [kind for kind in RowKind if not takes_verbs(Target(kind, "x"))] == [RowKind.REASON]


class Changing(FakeOperations):
    """Some messages are elsewhere by the time the verb comes."""

    async def act(
        self, verb: Verb, queue_ids: Sequence[QueueId], states: Collection[QueueState] = ()
    ) -> dict[QueueId, str]:
        return await super().act(verb, queue_ids, states) | {SECOND: CHANGED, THIRD: BUSY}


async def test_what_was_not_done_is_told_beside_what_was() -> None:
    operations = Changing([a_message(FIRST), a_message(SECOND), a_message(THIRD)])
    plan = await planned(operations, "hold", ISP)
    del operations.messages[FIRST]

    told = await carried_out(operations, plan, go_on)

    assert told == (
        "0 messages: held; 1: gone by now; 1: it is in another state by now; nothing changed; "
        "1: in a transaction"
    )


async def test_an_operator_stops_between_two_parts() -> None:
    ids = tuple(QueueId(f"{number:016d}") for number in range(2 * AT_ONCE + 1))
    operations = FakeOperations(a_message(each) for each in ids)
    plan = Intent("hold", ISP, ids, len(ids), (QueueState.WAITING,))
    through: list[int] = []

    async def stop_after_two(count: int) -> bool:
        through.append(count)
        return len(through) < 2

    told = await carried_out(operations, plan, stop_after_two)

    assert through == [AT_ONCE, 2 * AT_ONCE]
    assert [len(asked) for _, asked in operations.asked] == [AT_ONCE, AT_ONCE]
    assert told == f"{2 * AT_ONCE} messages: held; 1 left alone: stopped"
