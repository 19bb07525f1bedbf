"""Lanes and routes as a policy states them, and what becomes of them for queue and throttle.  Pure.

Both say by the same keys which mail they are for (`MatchSettings`).  Guarantees: shares add up to at most
100, and every lane has one, written or of what is left; so none starves.  A ceiling is at least one slot.
With routes, every recipient matches one, since the last matches all; every upstream that a route names is
one of the policy.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from pydantic import BeforeValidator, Field

from relay.mail.address import is_valid_address
from relay.mail.rewriting import Rewriting
from relay.policy.limits import LimitSettings
from relay.policy.surroundings import UnusableSetting
from relay.policy.units import (
    AnyNetwork,
    AnyOrder,
    Duration,
    NotEmpty,
    PositiveInt,
    Section,
    any_network,
    each,
    text,
    unfit,
    whole_number,
)
from relay.queue import lanes, sorting
from relay.queue.routes import Route

DEFAULT_PATIENCE_NS = 86_400 * 1_000_000_000
MOST_LANES = 64
DEFAULT_FAILOVER_NS = 15 * 60 * 1_000_000_000
MOST_ROUTES = 64
OF_REPORTS = ("..", "reports", "upstreams")
"""From the routes of a policy to this key."""
"""Each message asks all of them at worst, and each is a label of some metrics."""
LONGEST_PATTERN = 300
ALL_PERCENT = 100

_FIELD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")


def _pattern(value: object) -> str:
    if isinstance(value, str) and 0 < len(value) <= LONGEST_PATTERN:
        return value
    words = f"expected a pattern of at most {LONGEST_PATTERN} characters"
    raise ValueError(f"{words}, got none") if value == "" else unfit(words, value)


def sender_pattern(value: object) -> str:
    if isinstance(value, str) and ("@" in value or "*" in value or value == sorting.NULL_SENDER):
        return _pattern(value)
    raise unfit("expected an address, @ and a domain, or '<>' for reports", value)


def rewrite_rule(value: object) -> str:
    """Take one address, or `@` and a domain, in ASCII."""
    if isinstance(value, str) and "@" in value and "*" not in value:
        tried = f"x{value}" if value.startswith("@") else value
        if is_valid_address(tried, smtputf8=False):
            return value
    raise unfit("expected one address, or @ and a domain, that mail is sent by", value)


def report_sender(value: object) -> str | None:
    # Only the recipient `Postmaster` needs no domain.
    if value is None or (
        isinstance(value, str)
        and "@" in value
        and len(value) <= LONGEST_PATTERN
        and is_valid_address(value, smtputf8=False)
    ):
        return value
    raise unfit("expected one address, in ASCII", value)


def domain_pattern(value: object) -> str:
    if isinstance(value, str) and "@" not in value and not value.startswith("."):
        return _pattern(value)
    raise unfit("expected a domain such as example.net or '*.example.net'", value)


def _field_name(value: object) -> str:
    if isinstance(value, str) and _FIELD_NAME.match(value):
        return value
    raise ValueError("the name of a header field is made of letters, digits, -, _ and .")


class _Conditions(TypedDict):
    """The fields of `sorting.Conditions`."""

    senders: tuple[str, ...]
    clients: tuple[AnyNetwork, ...]
    users: tuple[str, ...]
    recipient_domains: tuple[str, ...]
    headers: tuple[tuple[str, tuple[str, ...]], ...]
    recipients_above: int


Patterns = Annotated[tuple[str, ...], each(_pattern)]
FieldName = Annotated[str, BeforeValidator(_field_name)]


class MatchSettings(Section):
    """What a lane or a route asks of a message.  Of the keys that are there every one must match."""

    sender: Annotated[tuple[str, ...], each(sender_pattern)] | None = None
    """Reverse-paths: `news@here.example`, `@here.example`, `list-*@here.example`, `<>`."""
    client: Annotated[tuple[AnyNetwork, ...], each(any_network)] | None = None
    """Networks that it was handed over from."""
    user: Patterns | None = None
    """The login at the listener; who did not log in matches none."""
    recipient_domain: Annotated[tuple[str, ...], each(domain_pattern)] | None = None
    """A lane's every recipient is in one of these, a route's each by itself; `*.example.net` is what is
    below it."""
    header: Annotated[dict[FieldName, Patterns], NotEmpty] | None = None
    """Fields, and patterns of their values; in the first 64 KiB of content."""
    recipients_above: PositiveInt | None = None

    def asked(self) -> list[str]:
        """Return the keys that are there, in the order of MATCHING."""
        return [key for key in MATCHING if getattr(self, key) is not None]

    def conditions(self) -> _Conditions:
        return {
            "senders": self.sender or (),
            "clients": self.client or (),
            "users": self.user or (),
            "recipient_domains": self.recipient_domain or (),
            "headers": tuple((self.header or {}).items()),
            "recipients_above": self.recipients_above or 0,
        }


class LaneSettings(MatchSettings):
    """Mail that leaves by a share of its own."""

    share: Annotated[int, whole_number(1, ALL_PERCENT)] | None = None
    """Percent of what goes that is its own; default: an equal part of what the others leave."""
    ceiling: Annotated[int, whole_number(1, ALL_PERCENT)] | None = None
    """Percent of every limit's N that it may occupy at most, whoever else has mail; default: all."""
    patience_ns: Duration | None = Field(default=DEFAULT_PATIENCE_NS, alias="patience")
    """What is ready for longer goes before its turn; null: never."""


Lanes = Mapping[str, LaneSettings]
MATCHING = ("sender", "client", "user", "recipient_domain", "header", "recipients_above")
"""The keys that say what a lane or a route takes."""


def faults_of(of_policy: Lanes) -> list[UnusableSetting]:
    found = []
    for name, lane in of_policy.items():
        asked = lane.asked()
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


def rules_of_lanes(of_policy: Lanes) -> tuple[sorting.SortingRule, ...]:
    return tuple(
        sorting.SortingRule(name, **lane.conditions())
        for name, lane in of_policy.items()
        if name != lanes.DEFAULT_LANE
    )


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A limit on what one lane may hold of another limit."""

    unit: Literal["messages", "recipients", "connections", "bytes"]
    count: int
    per_ns: int
    label: str
    only: str
    """The lane."""
    for_each: Literal["lane"] = "lane"


def with_ceilings(limits: Sequence[LimitSettings], of_policy: Lanes) -> tuple[LimitSettings | Ceiling, ...]:
    """Of limits over all mail only: what counts for each sender, say, has no whole to take a part of.

    Not of bytes: a message goes whole, and one larger than its lane's part could never go.
    """
    return (*limits, *ceilings_of(limits, of_policy))


def ceilings_of(limits: Sequence[LimitSettings], of_policy: Lanes) -> tuple[Ceiling, ...]:
    return tuple(
        _ceiling(limit, name, lane.ceiling)
        for limit in limits
        if limit.for_each is None and limit.unit in ("messages", "recipients")
        for name, lane in of_policy.items()
        if lane.ceiling is not None
    )


def price_of(limits: Sequence[LimitSettings]) -> lanes.Price:
    """Price a slot of N in T at T / N."""
    costs = {"messages": 0, "recipients": 0, "connections": 0, "bytes": 0}
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


class RouteSettings(MatchSettings):
    """Through which upstreams mail goes.  Of the keys that say which mail every one must match."""

    upstreams: Annotated[tuple[str, ...], each(text)]
    """In the order of preference."""
    failover_after_ns: Duration | None = Field(default=DEFAULT_FAILOVER_NS, alias="failover_after")
    """The next upstream is used where the one before has been down for so long; null: never."""
    spill_after_ns: Duration | None = Field(default=None, alias="spill_after")
    """The next upstream is used where mail would wait longer for the one before; null: never."""
    rewrite: Annotated[str, BeforeValidator(rewrite_rule)] | None = None
    """An address that mail is sent by, or `@` and the domain of it; null: as it was handed over."""


Routes = Annotated[tuple[RouteSettings, ...], AnyOrder]


def faults_of_routes(
    routes: tuple[RouteSettings, ...], of_reports: tuple[str, ...], upstreams: Collection[str] | None
) -> list[UnusableSetting]:
    """`upstreams`: those of the policy; None where they have faults of their own."""
    found = _faults_of_names(OF_REPORTS, of_reports, upstreams)
    for index, route in enumerate(routes):
        found += _faults_of_names((index, "upstreams"), route.upstreams, upstreams)
        # Not so `failover_after`: it has a default, which a policy that is written out states.
        if len(route.upstreams) == 1 and route.spill_after_ns is not None:
            found.append(UnusableSetting("spill_after needs a second upstream", (index, "spill_after")))
        is_last = index == len(routes) - 1
        if not route.asked() and not is_last:
            words = "a route without a condition takes all mail, so the routes behind it take none"
            found.append(UnusableSetting(words, (index,)))
        if route.asked() and is_last:
            words = "the last route must take all mail that no other takes: write one without"
            found.append(UnusableSetting(f"{words} {', '.join(MATCHING)}", (index,)))
    if len(routes) > MOST_ROUTES:
        found.append(UnusableSetting(f"at most {MOST_ROUTES} routes, got {len(routes)}", (MOST_ROUTES,)))
    return found


def faults_of_shared_files(
    routes: tuple[RouteSettings, ...], of_reports: tuple[str, ...], histories: Mapping[str, Path]
) -> list[UnusableSetting]:
    """Say where routes name a second upstream of one history: their pauses are one file, which both write."""
    user_of: dict[Path, str] = {}
    if of_reports and not routes:
        default = next(iter(histories))
        user_of[histories[default]] = default
    found = []
    lists: list[tuple[tuple[str | int, ...], tuple[str, ...]]] = [(OF_REPORTS, of_reports)]
    lists += [((index, "upstreams"), route.upstreams) for index, route in enumerate(routes)]
    for at, names in lists:
        for number, name in enumerate(names):
            if name in histories and (other := user_of.setdefault(histories[name], name)) != name:
                words = (
                    "it shares its history, and the pauses beside that, with another upstream of the routes"
                )
                more = "give it a history of its own"
                shown = f"{name} shares its history, and the pauses beside that, with {other}: {more}"
                found.append(UnusableSetting(f"{words}: {more}", (*at, number), shown))
    return found


def _faults_of_names(
    at: tuple[str | int, ...], names: tuple[str, ...], upstreams: Collection[str] | None
) -> list[UnusableSetting]:
    found = []
    for number, name in enumerate(names):
        if name in names[:number]:
            found.append(UnusableSetting("it is listed before", (*at, number), f"{name} is listed before"))
        elif upstreams is not None and name not in upstreams:
            words = "the policy has no upstream of this name"
            found.append(UnusableSetting(words, (*at, number), f"the policy has no upstream {name}"))
    return found


def with_reports(
    routes: tuple[RouteSettings, ...], of_reports: tuple[str, ...], default: str
) -> tuple[RouteSettings, ...]:
    """Return the routes of a policy; those upstreams that reports go through are the first of them."""
    if not of_reports:
        return routes
    first = RouteSettings(sender=(sorting.NULL_SENDER,), upstreams=of_reports)
    return (first, *(routes or [RouteSettings(upstreams=(default,))]))


def upstreams_of_reports(routes: tuple[RouteSettings, ...], default: str) -> tuple[str, ...]:
    """Return the upstreams of the first route that takes the sender of reports and asks for nothing else."""
    for route in routes:
        is_open = route.asked() in ([], ["sender"])
        if is_open and (route.sender is None or sorting.is_address(route.sender, "")):
            return route.upstreams
    return (default,)


def routes_of(routes: tuple[RouteSettings, ...]) -> tuple[Route, ...]:
    return tuple(
        Route(
            each.upstreams,
            each.failover_after_ns,
            each.spill_after_ns,
            None if each.rewrite is None else Rewriting(each.rewrite),
        )
        for each in routes
    )


def numbers_of(routes: tuple[RouteSettings, ...]) -> dict[Route, tuple[int, ...]]:
    """Return the numbers of each route, from 1, by what the queue knows of it.

    Routes that differ in nothing but what they take are one there.
    """
    numbers: dict[Route, tuple[int, ...]] = {}
    for number, route in enumerate(routes_of(routes), 1):
        numbers[route] = (*numbers.get(route, ()), number)
    return numbers


def numbering_sorter(routes: tuple[RouteSettings, ...]) -> sorting.Sorter:
    """Return a sorter that gives each recipient a route with the number of its own, from 1, for a name."""
    return sorting.Sorter(
        routes=tuple(
            sorting.RoutingRule(Route((str(number),)), **settings.conditions())
            for number, settings in enumerate(routes, 1)
        )
    )


def stand_ins(routes: tuple[RouteSettings, ...]) -> tuple[tuple[str, str], ...]:
    """Return each upstream through which mail may go with each that its route prefers to it."""
    return tuple(
        dict.fromkeys(
            (name, before)
            for route in routes
            for index, name in enumerate(route.upstreams)
            for before in route.upstreams[:index]
        )
    )


def sorter_of(lanes: Lanes, routes: tuple[RouteSettings, ...]) -> sorting.Sorter:
    of_routes = zip(routes, routes_of(routes), strict=True)
    return sorting.Sorter(
        rules_of_lanes(lanes),
        tuple(sorting.RoutingRule(route, **settings.conditions()) for settings, route in of_routes),
    )


def listed_upstreams(routes: tuple[RouteSettings, ...], default: str) -> frozenset[str]:
    """Return the upstreams that may get mail."""
    return frozenset(name for route in routes for name in route.upstreams) or frozenset([default])
