"""Lanes as a policy states them, and what becomes of them for the queue and the throttle.  Pure.

Guarantees: shares add up to at most 100, and every lane has one, written or of what is
left; so none starves.  A ceiling is at least one slot.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from relay.policy.limits import LimitSettings
from relay.policy.surroundings import UnusableSetting
from relay.policy.units import (
    AnyNetwork,
    Duration,
    NotEmpty,
    PositiveInt,
    Section,
    any_network,
    each,
    unfit,
    whole_number,
)
from relay.queue import lanes, sorting

DEFAULT_PATIENCE_NS = 86_400 * 1_000_000_000
MOST_LANES = 64
"""Each message asks all of them at worst, and each is a label of some metrics."""
LONGEST_PATTERN = 300
ALL_PERCENT = 100

_FIELD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")


def _pattern(value: object) -> str:
    if isinstance(value, str) and 0 < len(value) <= LONGEST_PATTERN:
        return value
    words = f"expected a pattern of at most {LONGEST_PATTERN} characters"
    raise ValueError(f"{words}, got none") if value == "" else unfit(words, value)


def _sender_pattern(value: object) -> str:
    if isinstance(value, str) and ("@" in value or "*" in value or value == sorting.NULL_SENDER):
        return _pattern(value)
    raise unfit("expected an address, @ and a domain, or '<>' for reports", value)


def _domain_pattern(value: object) -> str:
    if isinstance(value, str) and "@" not in value and not value.startswith("."):
        return _pattern(value)
    raise unfit("expected a domain such as example.net or '*.example.net'", value)


def _field_name(value: object) -> str:
    if isinstance(value, str) and _FIELD_NAME.match(value):
        return value
    raise ValueError("the name of a header field is made of letters, digits, -, _ and .")


Patterns = Annotated[tuple[str, ...], each(_pattern)]
FieldName = Annotated[str, BeforeValidator(_field_name)]


class LaneSettings(Section):
    """Mail that leaves by a share of its own.  Of the keys that are there every one must match."""

    sender: Annotated[tuple[str, ...], each(_sender_pattern)] | None = None
    """Reverse-paths: `news@here.example`, `@here.example`, `list-*@here.example`, `<>`."""
    client: Annotated[tuple[AnyNetwork, ...], each(any_network)] | None = None
    """Networks that it was handed over from."""
    recipient_domain: Annotated[tuple[str, ...], each(_domain_pattern)] | None = None
    """Every recipient is in one of these; `*.example.net` is what is below it."""
    header: Annotated[dict[FieldName, Patterns], NotEmpty] | None = None
    """Fields, and patterns of their values; in the first 64 KiB of content."""
    recipients_above: PositiveInt | None = None
    share: Annotated[int, whole_number(1, ALL_PERCENT)] | None = None
    """Percent of what goes that is its own; default: an equal part of what the others leave."""
    ceiling: Annotated[int, whole_number(1, ALL_PERCENT)] | None = None
    """Percent of every limit's N that it may occupy at most, whoever else has mail; default: all."""
    patience_ns: Duration | None = Field(default=DEFAULT_PATIENCE_NS, alias="patience")
    """What is ready for longer goes before its turn; null: never."""


Lanes = Mapping[str, LaneSettings]
MATCHING = ("sender", "client", "recipient_domain", "header", "recipients_above")
"""The keys that say what is in a lane."""


def faults_of(of_policy: Lanes) -> list[UnusableSetting]:
    found = []
    for name, lane in of_policy.items():
        asked = [key for key in MATCHING if getattr(lane, key) is not None]
        if name == lanes.DEFAULT_LANE:
            found += [
                UnusableSetting("default takes what no other lane takes, so it has no conditions", (name, k))
                for k in asked
            ]
        elif not asked:
            found.append(
                UnusableSetting(
                    f"a lane without a condition takes all mail: write one of {', '.join(MATCHING)}", (name,)
                )
            )
    if len(of_policy) > MOST_LANES:
        found.append(UnusableSetting(f"at most {MOST_LANES} lanes, got {len(of_policy)}", ()))
    total = 0
    for name, lane in of_policy.items():
        total += lane.share or 0
        if lane.share is not None and total > ALL_PERCENT:
            words = "the shares up to here add up to"
            at = (name, "share")
            return [*found, UnusableSetting(f"{words} more than 100 percent", at, f"{words} {total} percent")]
    without = [name for name in _names(of_policy) if not of_policy.get(name, LaneSettings()).share]
    if total == ALL_PERCENT and without:
        last = next(name for name in reversed(list(of_policy)) if of_policy[name].share)
        words = "the shares add up to 100 and leave nothing for"
        shown = f"{words} {' and '.join(without)}"
        found.append(UnusableSetting(f"{words} the lanes without one", (last, "share"), shown))
    return found


def lanes_of(of_policy: Lanes) -> tuple[lanes.Lane, ...]:
    """Return none where the policy has none."""
    names = _names(of_policy) if of_policy else []
    shares = [of_policy.get(name, LaneSettings()).share for name in names]
    others = shares.count(None)
    left = ALL_PERCENT - sum(share or 0 for share in shares)
    found = []
    for name, share in zip(names, shares, strict=True):
        lane = of_policy.get(name, LaneSettings())
        weight = left if share is None else share * max(1, others)
        found.append(lanes.Lane(name, weight, lane.patience_ns, lane.ceiling is not None))
    return tuple(found)


def sorter_of(of_policy: Lanes) -> sorting.Sorter:
    return sorting.Sorter(
        tuple(
            sorting.SortingRule(
                name,
                lane.sender or (),
                lane.client or (),
                lane.recipient_domain or (),
                tuple((lane.header or {}).items()),
                lane.recipients_above or 0,
            )
            for name, lane in of_policy.items()
            if name != lanes.DEFAULT_LANE
        )
    )


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A limit on what one lane may hold of another limit."""

    unit: Literal["messages", "recipients", "connections"]
    count: int
    per_ns: int
    label: str
    only: str
    """The lane."""
    for_each: Literal["lane"] = "lane"


def with_ceilings(limits: Sequence[LimitSettings], of_policy: Lanes) -> tuple[LimitSettings | Ceiling, ...]:
    """Of limits over all mail only: what counts for each sender, say, has no whole to take a part of."""
    return (*limits, *ceilings_of(limits, of_policy))


def ceilings_of(limits: Sequence[LimitSettings], of_policy: Lanes) -> tuple[Ceiling, ...]:
    return tuple(
        _ceiling(limit, name, lane.ceiling)
        for limit in limits
        if limit.for_each is None and limit.unit != "connections"
        for name, lane in of_policy.items()
        if lane.ceiling is not None
    )


def price_of(limits: Sequence[LimitSettings]) -> lanes.Price:
    """Price a slot of N in T at T / N."""
    costs = {"messages": 0, "recipients": 0, "connections": 0}
    for limit in limits:
        if limit.for_each is None:
            costs[limit.unit] = max(costs[limit.unit], limit.per_ns // limit.count)
    return lanes.Price(costs["messages"], costs["recipients"])


def _ceiling(limit: LimitSettings, name: str, percent: int) -> Ceiling:
    part = limit.model_copy(update={limit.unit: max(1, limit.count * percent // ALL_PERCENT)})
    return Ceiling(part.unit, part.count, part.per_ns, f"{part.label} for lane {name}", name)


def _names(of_policy: Lanes) -> list[str]:
    """Put the default lane last unless it is written."""
    return list(dict.fromkeys([*of_policy, lanes.DEFAULT_LANE]))
