"""The listing of the queue: a row a message, each with when it will go by estimate.  Reads memory only."""

import math
from collections.abc import Mapping
from dataclasses import replace

from relay.clock import Clock
from relay.mail.envelope import QueueId
from relay.queue.queued import RECIPIENTS_SHOWN, Queued, State
from relay.queue.queues import Queues
from relay.queue.routes import words_of
from relay.spool.interface import SetAside
from relay.status.eta import Expected, Load, Pace
from relay.status.filters import Listed
from relay.status.snapshot import MessageView, QueueState

NOT_IN_POLICY = "stop: its upstream has left the policy, and its last transaction may still relay it"
HOLD, REPORTS, BACK_OFF, RESTS = "hold", "reports.per_hour", "back-off", "sender rests"
_NOT_IN_LINE = {State.HELD: HOLD, State.REPORTING: REPORTS}
_FURTHEST_FIRST = [QueueState(state) for state in ("active", "waiting", "deferred", "held", "reporting")]


class Listing:
    """Rows are to be asked for oldest first: what waits is taken to go in this order.

    A message that is gone has no row.
    """

    def __init__(
        self,
        queue: Queues,
        paces: Mapping[str, Pace],
        paused: Mapping[str, str],
        clock: Clock,
        host: str = "",
    ) -> None:
        """`paused` is by the upstream why nothing of its line is sent; `host` is of a shared queue."""
        self._queue, self._paces, self._paused, self._host = queue, paces, paused, host
        self._now_ns = clock.boottime_ns()
        self._to_wall_ns = clock.wall_ns() - self._now_ns
        self._ahead: dict[tuple[str, str | None], Load] = {}
        """By the upstream, and by the upstream and its lane: what waits and had its row."""

    def messages(self) -> list[MessageView]:
        rows = map(self.row, sorted(self._queue.ids()))
        return [each.view for each in rows if each is not None]

    def row(self, queue_id: QueueId) -> Listed | None:
        """Return a message; None if it is gone."""
        found: Listed | None = None
        for part in self._queue.parts(queue_id):
            each = Listed(self.part(part), self._now_ns - part.arrived_at_ns)
            found = each if found is None else _as_one(found, each)
        return found

    def message(self, queue_id: QueueId, recipients: tuple[str, ...]) -> MessageView | None:
        """Return one message with all its recipients that are left; None if it is gone."""
        for name in {part.upstream for part in self._queue.parts(queue_id)}:
            for each in self._queue.line(name):
                if each.state is State.WAITING and each.queue_id < queue_id:
                    self._pass(each)
        found = self.row(queue_id)
        return None if found is None else replace(found.view, recipients=recipients)

    def set_aside(self, file: SetAside) -> Listed:
        """Name the file as corrupt/ does, which in general is no id; its age is by the wall clock."""
        view = MessageView(
            QueueId(file.name),
            QueueState.CORRUPT,
            file.size_bytes,
            file.arrival_at_ns,
            file.reverse_path,
            file.recipients_left,
            (),
            file.reason,
        )
        return Listed(view, self._now_ns + self._to_wall_ns - file.arrival_at_ns)

    def _pass(self, part: Queued) -> tuple[Load, str, Load]:
        """Count a message that waits; return what goes up to it, its lane, and what goes there up to it."""
        lane = self._queue.lane_of(part)
        for key in (part.upstream, None), (part.upstream, lane):
            before = self._ahead.get(key, Load())
            self._ahead[key] = before.plus(1, part.recipients_left, part.size_bytes)
        return self._ahead[part.upstream, None], lane, self._ahead[part.upstream, lane]

    def _expected(self, part: Queued) -> Expected:
        pace = self._paces.get(part.upstream)
        if part.state in _NOT_IN_LINE or pace is None:
            return Expected(None, _NOT_IN_LINE.get(part.state, NOT_IN_POLICY))
        match part.state:
            case State.WAITING:
                expected = pace.at(*self._pass(part))
                if part.is_sitting_out:
                    return Expected(None, RESTS)
                # What only its own key keeps back says so itself.
                return expected._replace(held_by=expected.held_by or part.reason)
            case State.DEFERRED:
                soonest = pace.at(Load(1, part.recipients_left, part.size_bytes))
                if soonest.eta_ns is None or soonest.eta_ns > part.due_at_ns:
                    return soonest
                return Expected(part.due_at_ns, BACK_OFF)
        return Expected(self._now_ns, "")

    def part(self, queued: Queued) -> MessageView:
        """Return what of a message stands in one line."""
        expected, shown = self._expected(queued), queued.shown
        return MessageView(
            queued.queue_id,
            QueueState(queued.state.value),
            queued.size_bytes,
            shown.arrival_at_ns or queued.arrived_at_ns + self._to_wall_ns,
            queued.reverse_path,
            queued.recipients_left,
            shown.recipients[: queued.recipients_left],
            (self._paused.get(queued.upstream) if queued.state is State.WAITING else "") or queued.reason,
            queued.due_at_ns + self._to_wall_ns if queued.state is State.DEFERRED else None,
            None if expected.eta_ns is None else expected.eta_ns + self._to_wall_ns,
            queued.upstream,
            expected.held_by,
            self._queue.lane_of(queued),
            words_of(queued.choice),
            client=queued.client,
            user=queued.user or None,
            message_id=shown.names.message_id,
            subject=shown.names.subject,
            client_queue_id=shown.names.client_queue_id,
            upstream_choice=queued.choice.because,
            instead_of=queued.choice.instead_of,
            rewritten_as="" if queued.sent_reverse_path == queued.reverse_path else queued.sent_reverse_path,
            host=self._host,
        )


def _as_one(one: Listed, other: Listed) -> Listed:
    """Return two parts of a message as one: in the state of the part that is furthest on its way.

    Its estimate, and what holds it, are those of the part that goes last.
    """
    first, second = sorted((one.view, other.view), key=lambda view: _FURTHEST_FIRST.index(view.state))
    last = max((first, second), key=lambda view: math.inf if view.eta_at_ns is None else view.eta_at_ns)
    odd = first if first.upstream_because else second
    upstreams = dict.fromkeys(
        (first.upstream, *first.further_upstreams, second.upstream, *second.further_upstreams)
    )
    return Listed(
        replace(
            first,
            recipients_left=first.recipients_left + second.recipients_left,
            recipients=(*first.recipients, *second.recipients)[:RECIPIENTS_SHOWN],
            eta_at_ns=last.eta_at_ns,
            held_by=last.held_by,
            reason=last.reason,
            further_upstreams=tuple(upstreams)[1:],
            upstream_because=odd.upstream_because,
            upstream_choice=odd.upstream_choice,
            instead_of=odd.instead_of,
        ),
        one.age_ns,
    )
