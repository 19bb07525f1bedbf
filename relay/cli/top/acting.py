"""What a key of `relay top` would do to the messages of a row, and doing it.

Guarantees: what is shown before the confirmation is what is acted on: the messages that were listed then,
and of these only those that are still in the state they were listed in.  By the rules of
`relay.control.operations.TABLE`, as `relay queue hold` and `relay queue retry` go.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from relay.cli.top.picture import RowKind, Target
from relay.control.operations import ABSENT, BUSY, OK, TABLE, UNCHANGED, Operations, Verb
from relay.mail.address import comparable
from relay.mail.envelope import QueueId
from relay.status.filters import Filters, Wanted
from relay.status.snapshot import QueueState

AT_ONCE = 1000
"""Messages between two looks at whether the operator wants to stop."""
_SAID = {ABSENT: "gone by now", BUSY: "in a transaction", UNCHANGED: "nothing to change"}


@dataclass(frozen=True, slots=True)
class Intent:
    verb: Verb
    target: Target
    queue_ids: tuple[QueueId, ...]
    recipients: int
    states: tuple[QueueState, ...]

    def words(self) -> str:
        """Return what would be done."""
        row, what = TABLE[self.verb], target_words(self.target)
        if not self.queue_ids:
            return f"nothing to {self.verb}: {what} has no message that is {_either(self.states)}"
        return (
            f"{self.verb} {len(self.queue_ids)} messages, {self.recipients} recipients, of {what} "
            f"({_either(self.states)} now): {row.done}"
        )


def target_words(target: Target) -> str:
    return f"{target.kind.value} {target.name or '<>'}"


def takes_verbs(target: Target) -> bool:
    """Whether its messages can be named by filters: by a reason no verb goes."""
    return target.kind is not RowKind.REASON


async def planned(operations: Operations, verb: Verb, target: Target) -> Intent:
    """List what a verb would change.  Costs the relay as `relay queue` does.  Raises Unreachable."""
    states = TABLE[verb].changes
    listed = await operations.queue(Wanted(_filters(target, states)))
    # A filter is a pattern: a `*` in the address of a sender finds others too.
    meant = [
        each
        for each in listed
        if target.kind is not RowKind.SENDER or comparable(each.reverse_path) == comparable(target.name)
    ]
    recipients = sum(each.recipients_left for each in meant)
    return Intent(verb, target, tuple(each.queue_id for each in meant), recipients, states)


async def carried_out(
    operations: Operations, plan: Intent, on_progress: Callable[[int], Awaitable[bool]]
) -> str:
    """Act, and return what was done.

    `on_progress` is told how many messages are through, and returns whether to go on.  Raises Unreachable.
    """
    results: Counter[str] = Counter()
    for start in range(0, len(plan.queue_ids), AT_ONCE):
        some = plan.queue_ids[start : start + AT_ONCE]
        answers = await operations.act(plan.verb, some, plan.states)
        results.update(answers.values())
        if not await on_progress(start + len(some)):
            break
    return _told(plan, results)


def _told(plan: Intent, results: Mapping[str, int]) -> str:
    done = [f"{results.get(OK, 0)} messages: {TABLE[plan.verb].done}"]
    done += [f"{count}: {_SAID.get(result, result)}" for result, count in results.items() if result != OK]
    if left := len(plan.queue_ids) - sum(results.values()):
        done.append(f"{left} left alone: stopped")
    return "; ".join(done)


def _filters(target: Target, states: tuple[QueueState, ...]) -> Filters:
    match target.kind:
        case RowKind.UPSTREAM:
            return Filters(upstreams=(target.name,), states=states)
        case RowKind.LANE:
            return Filters(lanes=(target.name,), states=states)
        case RowKind.SENDER:
            return Filters(senders=(target.name or "<>",), states=states)
        case RowKind.REASON:
            raise ValueError("no verb goes by a reason")


def _either(states: Sequence[QueueState]) -> str:
    return " or ".join(state.value for state in states)
