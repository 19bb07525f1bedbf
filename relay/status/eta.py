"""Forecasts when waiting mail will have been relayed, and lists the queue with these times.  Pure.

The N slots of a window open one after the other, and each opens again T after its transaction ended.  If
each slot is used at once, the k-th slot from now opens at `opening[(k-1) mod N] + T * ((k-1) div N)`.
Where several windows count messages, the k-th message uses the slot of message k-N, from `begun[k-N] + T`,
and the window that is last decides.  The connections are such a window; its T is a transaction's duration.

The forecast is exact for one line whose limits all count messages, without keys and lanes, for its first
MOST_BEGINS messages; and under a single limit that binds more than the connections do.  It assumes that no
mail arrives, nothing is refused, and transactions take their average time.  Otherwise it is an estimate that
tends to be early: it ignores limits for each key, the turns of lanes, and how limits of different units
delay each other.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from operator import add
from typing import NamedTuple

from relay.clock import Clock
from relay.mail.envelope import QueueId
from relay.queue.queued import RECIPIENTS_SHOWN, Queued, State
from relay.queue.queues import Queues
from relay.queue.routes import reason_of
from relay.spool.interface import SetAside
from relay.status.snapshot import MessageView, QueueState
from relay.throttle.limit import Opening, Usage

CONNECTIONS = "connections"
NEXT = ""
"""The message goes now."""
MOST_BEGINS = 2000
NOT_IN_POLICY = "stop: its upstream was removed from the policy"
HOLD, REPORTS, BACK_OFF, RESTS = "hold", "reports.per_hour", "back-off", "sender pause"
_NOT_IN_LINE = {State.HELD: HOLD, State.REPORTING: REPORTS}
_FURTHEST_FIRST = [QueueState(state) for state in ("active", "waiting", "deferred", "held", "reporting")]


class Load(NamedTuple):
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0


_UNITS = {"messages": 0, "recipients": 1, "bytes": 2}


class Forecast(NamedTuple):
    eta_ns: int | None
    """Boottime: when the message will have been relayed; None if that is unknown."""
    held_by: str
    """The cause of most of its wait; empty if it goes now."""


class _Window:
    def __init__(
        self, words: str, count: int, again_ns: int, now_ns: int, openings: Iterable[Opening] = ()
    ) -> None:
        """`again_ns` is the time from the use of a slot until it is free again."""
        openings = sorted(each for each in openings if each[0] > now_ns)
        self.words, self._count, self._again_ns = words, max(1, count), again_ns
        self._instants = [now_ns, *(at_ns for at_ns, _ in openings)]
        self._opened = [0, *accumulate(weight for _, weight in openings)]

    def slot(self, number: int) -> int:
        """Return when the slot of this number from now, counted from 1, opens, if each is used at once."""
        turns, slot = divmod(max(1, number) - 1, self._count)
        # How much of the weight that is used now must have opened.
        needed = self._opened[-1] + slot + 1 - self._count
        return self._instants[bisect_left(self._opened, needed)] + turns * self._again_ns

    def next(self, begun: Sequence[tuple[int, str]]) -> int:
        """Return when a slot is free for the message after those in `begun`."""
        if len(begun) < self._count:
            return self.slot(len(begun) + 1)
        return begun[-self._count][0] + self._again_ns


class AccountForecast:
    """The forecast for the mail of one account from now on."""

    def __init__(
        self,
        now_ns: int,
        usages: Sequence[Usage] = (),
        *,
        connections: int = 1,
        transaction_ns: int = 0,
        rests: str = "",
        until_ns: int | None = 0,
    ) -> None:
        """`rests` says why nothing is sent before `until_ns`; None: the end of the rest is unknown."""
        self._is_endless = bool(rests) and until_ns is None
        self._rests, self._transaction_ns = rests, transaction_ns
        self._from_ns = max(now_ns, until_ns or 0) if rests else now_ns
        self._of_line: list[_Window] = []
        """The windows that count messages."""
        self._others: list[tuple[int, str | None, _Window]] = []
        """Limits of recipients and bytes, and ceilings of lanes; each is forecast by itself."""
        self._begun: list[tuple[int, str]] = []
        """For each message of the line, as far as asked for: when it begins, and what it waits for."""
        if transaction_ns:
            self._of_line.append(_Window(CONNECTIONS, connections, transaction_ns, self._from_ns))
        for usage in usages:
            limit = usage.limit
            if limit.unit not in _UNITS or (limit.for_each is not None and limit.only is None):
                continue
            again_ns = limit.span_ns + transaction_ns
            window = _Window(limit.reason, limit.count, again_ns, self._from_ns, usage.openings)
            if limit.only is None and limit.unit == "messages":
                self._of_line.append(window)
            else:
                self._others.append((_UNITS[limit.unit], limit.only, window))

    def at(self, load: Load, lane: str = "", of_lane: Load | None = None) -> Forecast:
        """Return the forecast for the last message of a load; `of_lane` is its lane's part of the load."""
        if self._is_endless:
            return Forecast(None, self._rests)
        begins = [self._begin(max(1, load.messages))]
        for unit, only, window in self._others:
            if only in (None, lane):
                number = (load if only is None else of_lane or load)[unit]
                begins.append((window.slot(number), window.words))
        at_ns, words = max(begins)
        held_by = words if at_ns > self._from_ns else NEXT
        return Forecast(at_ns + self._transaction_ns, self._rests or held_by)

    def _begin(self, number: int) -> tuple[int, str]:
        """Return when the message of this number begins, and what it waits for."""
        if not self._of_line:
            return self._from_ns, NEXT
        begun = self._begun
        while len(begun) < min(number, MOST_BEGINS):
            free = max((window.next(begun), window.words) for window in self._of_line)
            # No message begins before the one ahead of it.
            begun.append(max([free, *begun[-1:]], key=lambda each: each[0]))
        if number <= MOST_BEGINS:
            return begun[number - 1]
        # From there on each window goes by itself, with the delay that it had at MOST_BEGINS.
        return max(
            (each.slot(number) + begun[-1][0] - each.slot(MOST_BEGINS), each.words) for each in self._of_line
        )


class Listing:
    """Ask for rows oldest first: the forecast assumes that waiting messages go in the order of the calls."""

    def __init__(
        self,
        queue: Queues,
        forecasts: Mapping[str, AccountForecast],
        paused: Mapping[str, str],
        clock: Clock,
        host: str = "",
    ) -> None:
        """`paused` says why an upstream's line sends nothing; `host` is this host, if the queue is shared."""
        self._queue, self._forecasts, self._paused, self._host = queue, forecasts, paused, host
        self._now_ns = clock.boottime_ns()
        self._to_wall_ns = clock.wall_ns() - self._now_ns
        self._ahead: dict[tuple[str, str | None], Load] = {}
        """By (upstream, None) and by (upstream, lane): the waiting mail whose rows were asked for."""

    def row(self, queue_id: QueueId) -> MessageView | None:
        """Return a message; None if it is gone."""
        views = list(map(self.part, self._queue.parts(queue_id)))
        return reduce(_as_one, views) if views else None

    def message(self, queue_id: QueueId, recipients: tuple[str, ...]) -> MessageView | None:
        """Return one message with all its recipients left; None if it is gone."""
        for name in {part.upstream for part in self._queue.parts(queue_id)}:
            for each in self._queue.line(name):
                if each.state is State.WAITING and each.queue_id < queue_id:
                    self._pass(each)
        found = self.row(queue_id)
        return None if found is None else replace(found, recipients=recipients)

    def set_aside(self, file: SetAside) -> MessageView:
        """Name the row as the file in corrupt/, in general no queue id.  Its age is by the wall clock."""
        return MessageView(
            QueueId(file.name),
            QueueState.CORRUPT,
            file.size_bytes,
            file.arrival_at_ns,
            self._now_ns + self._to_wall_ns - file.arrival_at_ns,
            file.reverse_path,
            file.recipients_left,
            (),
            file.reason,
        )

    def _pass(self, part: Queued) -> tuple[Load, str, Load]:
        """Count a waiting message; return the load up to it, its lane, and the lane's load up to it."""
        lane = self._queue.line_of(part).lane_of(part)
        for key in (part.upstream, None), (part.upstream, lane):
            its = 1, part.recipients_left, part.size_bytes
            self._ahead[key] = Load(*map(add, self._ahead.get(key, Load()), its))
        return self._ahead[part.upstream, None], lane, self._ahead[part.upstream, lane]

    def _forecast(self, part: Queued) -> Forecast:
        account = self._forecasts.get(part.upstream)
        if part.state in _NOT_IN_LINE or account is None:
            return Forecast(None, _NOT_IN_LINE.get(part.state, NOT_IN_POLICY))
        match part.state:
            case State.WAITING:
                forecast = account.at(*self._pass(part))
                if part.is_sitting_out:
                    return Forecast(None, RESTS)
                # If only a limit of its own key holds the message, its reason says so.
                return forecast._replace(held_by=forecast.held_by or part.why.text)
            case State.DEFERRED:
                soonest = account.at(Load(1, part.recipients_left, part.size_bytes))
                if soonest.eta_ns is None or soonest.eta_ns > part.due_at_ns:
                    return soonest
                return Forecast(part.due_at_ns, BACK_OFF)
        return Forecast(self._now_ns, "")

    def part(self, queued: Queued) -> MessageView:
        """Return the view of a message's part in one line."""
        forecast, shown, origin = self._forecast(queued), queued.shown, queued.origin
        return MessageView(
            queued.queue_id,
            QueueState(queued.state.value),
            queued.size_bytes,
            shown.arrival_at_ns or queued.arrived_at_ns + self._to_wall_ns,
            max(0, self._now_ns - queued.arrived_at_ns),
            origin.reverse_path,
            queued.recipients_left,
            shown.recipients[: queued.recipients_left],
            (self._paused.get(queued.upstream) if queued.state is State.WAITING else "") or queued.why.text,
            queued.due_at_ns + self._to_wall_ns if queued.state is State.DEFERRED else None,
            None if forecast.eta_ns is None else forecast.eta_ns + self._to_wall_ns,
            queued.upstream,
            forecast.held_by,
            self._queue.line_of(queued).lane_of(queued),
            reason_of(queued.choice),
            client=origin.client,
            user=origin.user or None,
            message_id=shown.names.message_id,
            subject=shown.names.subject,
            client_queue_id=shown.names.client_queue_id,
            rewritten_as="" if origin.sent_reverse_path == origin.reverse_path else origin.sent_reverse_path,
            host=self._host,
        )


def _as_one(one: MessageView, other: MessageView) -> MessageView:
    """Merge two parts of a message.  The state is that of the part that is furthest on its way.

    The estimate, the reason and `held_by` are those of the part that goes last.
    """
    first, second = sorted((one, other), key=lambda view: _FURTHEST_FIRST.index(view.state))
    last = max((first, second), key=lambda view: math.inf if view.eta_at_ns is None else view.eta_at_ns)
    upstreams = dict.fromkeys(
        (first.upstream, *first.further_upstreams, second.upstream, *second.further_upstreams)
    )
    return replace(
        first,
        recipients_left=first.recipients_left + second.recipients_left,
        recipients=(*first.recipients, *second.recipients)[:RECIPIENTS_SHOWN],
        eta_at_ns=last.eta_at_ns,
        held_by=last.held_by,
        reason=last.reason,
        further_upstreams=tuple(upstreams)[1:],
        upstream_because=first.upstream_because or second.upstream_because,
    )
