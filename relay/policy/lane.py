"""Limits, lanes and routes of a policy, and the conversion of lanes and routes for the queue.  Pure.

Guarantees: a limit has exactly one unit, a number of at least 1 and a window.  Lanes and routes select mail
by the same keys (`MatchSettings`).  Shares add up to at most 100.  Lanes without a share divide the rest, so
no lane starves.  The last route matches every recipient.  The policy has every upstream that a route names.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, StringConstraints

from relay.mail.address import is_valid_address
from relay.mail.formats import period, size
from relay.mail.rewriting import Rewriting
from relay.policy import units
from relay.policy.document import Fault
from relay.queue import lanes, sorting
from relay.queue.queued import DEFAULT_LANE
from relay.queue.routes import Route

Unit = Literal["messages", "recipients", "bytes", "connections"]
UNITS: tuple[Unit, ...] = ("messages", "recipients", "bytes", "connections")


class LimitSettings(units.Section):
    messages: units.Count | None = None
    recipients: units.Count | None = None
    bytes: units.Size | None = None
    connections: units.Count | None = None
    per_ns: units.Duration
    for_each: Literal["sender", "sender_domain", "recipient_domain", "client", "user"] | None = None

    def faults(self) -> Iterator[Fault]:
        if len(given := self.given(UNITS)) > 1:
            yield Fault(f"a limit counts {' or '.join(given)}, not both; write two limits", (given[-1],))
        if not given:
            yield Fault(f"expected one of {', '.join(UNITS)}")
        if self.connections is not None and self.for_each is not None:
            yield Fault("a limit of connections has no for_each: many share a connection", ("for_each",))

    @property
    def unit(self) -> Unit:
        return next(unit for unit in UNITS if getattr(self, unit) is not None)

    @property
    def count(self) -> int:
        return int(getattr(self, self.unit))

    @property
    def label(self) -> str:
        """The name of the limit, such as `8 messages per 1m for each sender` or `1G per 24h`."""
        counted = size(self.count) if self.unit == "bytes" else f"{self.count} {self.unit}"
        each = f" for each {self.for_each.replace('_', ' ')}" if self.for_each else ""
        return f"{counted} per {period(self.per_ns)}{each}"


Limits = Annotated[
    tuple[LimitSettings, ...],
    AfterValidator(lambda limits: tuple({each.label: each for each in limits}.values())),
]
"""Limits of an upstream.  A limit that is written twice counts once: metrics tell limits apart by label."""

MOST_LANES = 64
MOST_ROUTES = 64
"""At worst a message is compared with every lane and route, and each is a label of some metrics."""
LONGEST_PATTERN = 300
ALL_PERCENT = 100


def sender_pattern(value: str) -> str:
    if "@" in value or "*" in value or value == sorting.NULL_SENDER:
        return value
    raise ValueError("expected an address, @ and a domain, a pattern with *, or '<>' for reports")


def domain_pattern(value: str) -> str:
    if "@" not in value and not value.startswith("."):
        return value
    raise ValueError("expected a domain such as example.net or '*.example.net'")


def _is_rewrite_rule(value: str) -> bool:
    tried = f"x{value}" if value.startswith("@") else value
    return "@" in value and "*" not in value and is_valid_address(tried, smtputf8=False)


Pattern = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_PATTERN)]
SenderPattern = Annotated[Pattern, AfterValidator(sender_pattern)]
DomainPattern = Annotated[Pattern, AfterValidator(domain_pattern)]
FieldName = Annotated[
    str, units.matching("[A-Za-z0-9_.-]{1,100}", "the name of a header field: letters, digits, -, _ and .")
]
RewriteRule = Annotated[str, units.checked(_is_rewrite_rule, "one sender address, or @ and a domain")]


class MatchSettings(units.Section):
    """The conditions of a lane or a route.  A message must match every key that is written."""

    sender: units.Several[SenderPattern] | None = None
    client: units.Several[units.AnyNetwork] | None = None
    user: units.Several[Pattern] | None = None
    recipient_domain: units.Several[DomainPattern] | None = None
    """A lane needs every recipient in one of these domains; a route looks at each recipient by itself."""
    header: Annotated[dict[FieldName, units.Several[Pattern]], units.NotEmpty] | None = None
    recipients_above: units.Count | None = None

    def asked(self) -> list[str]:
        return self.given(MatchSettings.model_fields)

    def conditions(self) -> sorting.Conditions:
        return sorting.Conditions(**{key: getattr(self, key) for key in self.asked()})


_MATCHING = ", ".join(MatchSettings.model_fields)


class LaneSettings(MatchSettings):
    share: units.Percent | None = None
    ceiling: units.Percent | None = None
    patience_ns: units.Duration | None = units.DAY_NS


class RouteSettings(MatchSettings):
    upstreams: units.Several[units.Text]
    """In order of preference."""
    failover_after_ns: units.Duration | None = 15 * units.MINUTE_NS
    spill_after_ns: units.Duration | None = None
    rewrite: RewriteRule | None = None

    @property
    def route(self) -> Route:
        rewriting = None if self.rewrite is None else Rewriting(self.rewrite)
        return Route(self.upstreams, self.failover_after_ns, self.spill_after_ns, rewriting)


Lanes = Mapping[str, LaneSettings]
Routes = tuple[RouteSettings, ...]


def faults_of_lanes(lane_settings: Lanes) -> Iterator[Fault]:
    for name, lane in lane_settings.items():
        if name == DEFAULT_LANE:
            words = "the lane default takes all other mail, so it has no conditions"
            yield from (Fault(words, ("lanes", name, key)) for key in lane.asked())
        elif not lane.asked():
            yield Fault(f"a lane needs one of {_MATCHING}", ("lanes", name))
    with_share = [name for name, lane in lane_settings.items() if lane.share]
    total = sum(lane_settings[name].share or 0 for name in with_share)
    if total > ALL_PERCENT:
        yield Fault(f"the shares add up to {total} percent, 100 at most", ("lanes", with_share[-1], "share"))
    if total == ALL_PERCENT and len(with_share) < len({*lane_settings, DEFAULT_LANE}):
        yield Fault("the shares leave nothing for lanes without a share", ("lanes", with_share[-1], "share"))


def faults_of_routes(routes: Routes) -> Iterator[Fault]:
    for index, route in enumerate(routes):
        at, is_last = ("routes", index), index == len(routes) - 1
        if not route.asked() and not is_last:
            yield Fault("a route without a condition takes all mail: make it the last", at)
        if route.asked() and is_last:
            yield Fault(f"the last route must take all mail: write one without {_MATCHING}", at)


def lanes_of(lane_settings: Lanes) -> tuple[lanes.Lane, ...]:
    """Return the lanes for the queue; none if the policy has none."""
    every = dict(lane_settings)
    if every:
        every.setdefault(DEFAULT_LANE, LaneSettings.model_construct())
    shares = [lane.share for lane in every.values()]
    without_share, left = shares.count(None), ALL_PERCENT - sum(share or 0 for share in shares)
    return tuple(
        lanes.Lane(name, left if lane.share is None else lane.share * max(1, without_share), lane.patience_ns)
        for name, lane in every.items()
    )


def costs_of(limits: Sequence[LimitSettings]) -> tuple[int, int]:
    """Return what a message and a recipient cost (ns): the highest T / N of limits over all mail."""
    of_all = [(each.unit, each.per_ns // each.count) for each in limits if each.for_each is None]
    message_ns = max((cost_ns for unit, cost_ns in of_all if unit == "messages"), default=0)
    return message_ns, max((cost_ns for unit, cost_ns in of_all if unit == "recipients"), default=0)


def route_numbers_of(routes: Routes) -> dict[Route, tuple[int, ...]]:
    """Return the numbers, from 1, that each `Route` of the queue has in the policy.

    Routes of the policy that differ only in their conditions are one `Route`.
    """
    numbers: dict[Route, tuple[int, ...]] = {}
    for number, its in enumerate(routes, 1):
        numbers[its.route] = (*numbers.get(its.route, ()), number)
    return numbers


def sorter_of(lane_settings: Lanes, routes: Routes) -> sorting.Sorter:
    named = {name: its for name, its in lane_settings.items() if name != DEFAULT_LANE}
    return sorting.Sorter(
        tuple((name, its.conditions()) for name, its in named.items()),
        tuple((its.route, its.conditions()) for its in routes),
    )
