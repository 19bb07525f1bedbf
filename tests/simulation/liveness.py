"""How long mail may take: computed from the limits and from the mail to send.

While the only events are clients that send (`late_in_fair_weather`), each message ends within the time that
the limits take for all mail present. While only an upstream is down (`late_in_failover`), mail goes by the
other one. After all disturbances all mail is gone within the `calm_s` of its world, which is far longer.
"""

import math
from collections.abc import Sequence

from relay.clock import SECOND_NS
from relay.policy.lane import LimitSettings
from tests.simulation.client import Copy
from tests.simulation.past import Past, key_of_sender
from tests.simulation.script import Feel, Send, World
from tests.simulation.upstream import ALIEN_TIMES, DEFERRED_TIMES, Mood

TRANSACTION_S = 3.0
"""The longest transaction while the upstream is well: its delays and the network's."""
EACH_S = 1.0
"""The average transaction, with two connections."""
TRACE_BYTES = 400
REPORT_BYTES = 4_000
ALIEN_RESTS_S = (15 + 30 + 60 + 120 + 240 + 6) * 60.0
"""The pauses of a sender that may not send at first, with a minute before each of its tries."""
DOWN_MOODS = (Mood.DOWN, Mood.BUSY, Mood.QUOTA_AT_MAIL, Mood.QUOTA_AT_DOT)
FAILOVER_S = 45.0
"""`failover_after`, plus the interval in which it is checked."""


def late_in_fair_weather(past: Past) -> str:
    """Return the message that ended too late while only clients acted, or an empty string."""
    ended_ns, gone_ns = past.passed.ended_ns(), past.passed.gone_ns()
    others_s = [event.at_s for event in past.script.events if not isinstance(event, Send)]
    until_ns = others_s[0] * SECOND_NS if others_s else math.inf
    for copy in past.copies:
        if not copy.is_accepted:
            continue
        due_ns, before_ns = copy.accepted_ns, -1
        while due_ns != before_ns and due_ns < until_ns:
            beside = [
                each
                for each in past.copies
                if each.begun_ns <= due_ns and gone_ns.get(each.key, due_ns) >= copy.accepted_ns
            ]
            span_s = sum(_span_s(past.world, each, beside) for each in past.limits.values())
            if copy.sender.startswith("alien"):
                span_s += ALIEN_RESTS_S
            before_ns, due_ns = due_ns, copy.accepted_ns + int(span_s * SECOND_NS)
        if due_ns < until_ns and ended_ns.get(copy.key, due_ns + 1) > due_ns:
            return (
                f"{copy.key} was to be gone by {due_ns / SECOND_NS:.1f} s, and went at "
                f"{ended_ns.get(copy.key, -SECOND_NS) / SECOND_NS:.1f} s"
            )
    return ""


def late_in_failover(past: Past) -> str:
    """Return the message that failed over late while its first upstream was down, or an empty string."""
    others = [event for event in past.script.events if not isinstance(event, Send)]
    feel = others[0] if len(others) == 1 else None
    if not isinstance(feel, Feel) or feel.mood not in DOWN_MOODS:
        return ""
    limits = [each for name, each in past.limits.items() if name != feel.upstream]
    spans_s = sum(_span_s(past.world, each, past.copies) for each in limits)
    for copy in past.copies:
        due_s = copy.accepted_ns / SECOND_NS + FAILOVER_S + TRANSACTION_S + spans_s
        if copy.accepted_ns < feel.at_s * SECOND_NS or due_s > feel.at_s + feel.seconds:
            continue
        for recipient in copy.recipients:
            first, _ = past.world.routes.get(recipient.rpartition("@")[2], ("", 0))
            times = past.passed.taken_of(copy, recipient)
            is_late = not times or times[0].true_ns > due_s * SECOND_NS
            if first == feel.upstream and recipient.startswith("ok") and is_late:
                return f"{copy.key} was to go past {first} by {due_s:.1f} s"
    return ""


def _span_s(world: World, limits: Sequence[LimitSettings], left: Sequence[Copy]) -> float:
    """Return how long these limits may delay all of `left`, if their windows are full at first."""
    tries = [_tries(copy, world.most_recipients) for copy in left]
    spans_s = 0.0
    for limit in limits:
        weights: dict[str, int] = {}
        for copy, (own, reports) in zip(left, tries, strict=True):
            key = key_of_sender(world.sent_by(copy.sender), limit)
            weights[key] = weights.get(key, 0) + own * _weight(copy, limit)
            weight = REPORT_BYTES if limit.unit == "bytes" else 1
            key = key_of_sender("", limit)
            weights[key] = weights.get(key, 0) + reports * weight
        count = max(1, limit.count * world.ceiling_percent // 100)
        windows = math.ceil(max(weights.values(), default=0) / count)
        spans_s += windows * (limit.per_ns / SECOND_NS + 1 + TRANSACTION_S)
    deferred = max((own - 1 + max(0, reports - 1) for own, reports in tries), default=0)
    transactions = sum(own + reports for own, reports in tries)
    return spans_s + transactions * EACH_S + TRANSACTION_S + deferred * (world.retry_max_s + TRANSACTION_S)


def _tries(copy: Copy, most_recipients: int) -> tuple[int, int]:
    """Return the number of transactions for a message, and the number for its reports."""
    is_deferred = any(each.startswith(("later", "slow", "junk")) for each in copy.recipients)
    own = (1 + DEFERRED_TIMES * is_deferred) * math.ceil(len(copy.recipients) / most_recipients)
    own += ALIEN_TIMES * copy.sender.startswith("alien")
    reports = 1 + DEFERRED_TIMES * copy.sender.startswith("later")
    return own, reports if copy.may_be_reported else 0


def _weight(copy: Copy, limit: LimitSettings) -> int:
    match limit.unit:
        case "recipients":
            return len(copy.recipients)
        case "bytes":
            return len(copy.content) + TRACE_BYTES
        case _:
            return 1
