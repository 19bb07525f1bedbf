"""What an edit changes: what needs a restart, whether it allows more, how long it must rest for that.  Pure.

A file that is written in place is a valid policy at several moments, and half of it often allows
more, because limits come last.  So an edit that allows more has to rest, for longer the more it looks
like half of one; an edit that allows less or the same counts at once.

An edit that lacks a key of the policy in force looks like half of one, but only if the key could
still follow: at the end of the file (`Document.unfinished`).  A key that is missing in the middle, or
inside closed brackets, was removed on purpose.

Guarantees: `loosening` takes for allowing more whatever it does not know to allow less.
Keys that count after a restart only are no part of this.
"""

import enum
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from relay.policy.document import Step, key_path
from relay.policy.lane import LaneSettings
from relay.policy.limits import LimitSettings
from relay.policy.model import Policy, Upstream
from relay.policy.named_file import Writing
from relay.policy.shipped import preset_limits
from relay.policy.units import Section
from relay.policy.written_out import written_key

RESTART_KEYS = ("storage", "listen", "http", "hostname", "practice")
"""Fields of a policy that are taken up at the start only; every other key is live."""
REST_NS = 3 * 1_000_000_000
"""Of an edit that allows more, from when no program has the file open for writing."""
UNSURE_REST_NS = 10 * 1_000_000_000
"""Where the system does not say whether a program has it open."""
LONG_REST_NS = 60 * 1_000_000_000
"""Where something of the policy in force is not there any more, or the last line has no end."""

LONGEST_DEFAULT_GUARD_NS = 1_000_000_000
_FEWER_IS_LESS = frozenset({"connections", "max_recipients", "max_messages"})
_ALLOWS_NOTHING = frozenset({"max_age_ns", "idle_ns", "pipelining", "history"})
"""How connections are used; each that is opened is counted, whatever these say.  A history is judged by
where it is, which is not only what this key says."""
_TO_BE_WRITTEN = ("limits", "history")
"""Keys whose end would let everything go: where they were, they do not go without a word."""


class Degree(enum.IntEnum):
    """How much a new policy looks like half of one."""

    NOTHING = 0
    """It allows less than the one in force, or the same."""
    MORE = 1
    """It allows more, and has all that the one in force has."""
    GONE = 2
    """It allows more, and lacks something; or a new account has no limits."""
    UNBOUNDED = 3
    """It allows more, and lacks the limits of an account, or the place of its history."""


Steps = tuple[Step, ...]


class Loosening(NamedTuple):
    degree: Degree
    keys: tuple[str, ...] = ()
    """Those that say so, such as `upstreams.isp.limits`; of a degree above MORE those that are gone."""


class Gone(NamedTuple):
    """What the policy in force has and a new one lacks."""

    steps: Steps
    place: Steps
    """Where it might come yet: in the mapping that lacks the key, or behind the key that has less."""


class RestPeriod(NamedTuple):
    ns: int | None
    """None: until its owner says that it is meant, or writes another one."""
    because: str


def changes_needing_restart(old: Policy, new: Policy) -> list[str]:
    """Return the fields; `written_key` says what a policy calls them."""
    return [key for key in RESTART_KEYS if getattr(old, key) != getattr(new, key)]


def loosening(old: Policy, new: Policy, unfinished: Collection[Steps]) -> Loosening:
    """`unfinished`: the parts of the new file that could go on."""
    # What waits for a restart is not in force, and neither is a history that follows a new spool.
    new = new.model_copy(update={key: getattr(old, key) for key in RESTART_KEYS})
    more = tuple(_more(old, new))
    if not more:
        return Loosening(Degree.NOTHING)
    for degree, gone in (Degree.UNBOUNDED, _unbounded(old, new)), (Degree.GONE, _all_gone(old, new)):
        if to_come := [each.steps for each in gone if each.place in unfinished]:
            return Loosening(degree, tuple(dict.fromkeys(map(key_path, to_come))))
    return Loosening(Degree.MORE, more)


def restrained(old: Policy, new: Policy) -> Policy:
    """While an edit rests both hold: what it allows less of does not wait for what it allows more of."""
    new = new.model_copy(update={key: getattr(old, key) for key in RESTART_KEYS})
    tightened: dict[str, Upstream] = {}
    for name, before in pairs(old, new):
        if before is not None:
            upstream = tightened.get(before, old.upstreams[before])
            limits = upstream.limits
            if tighter := tuple(each for each in new.upstreams[name].limits if not _is_within(each, limits)):
                tightened[before] = upstream.model_copy(update={"limits": limits + tighter})
    return old.model_copy(update={"upstreams": {**old.upstreams, **tightened}}) if tightened else old


def rest_of(found: Loosening, writing: Writing, *, has_end: bool, is_asked: bool) -> RestPeriod:
    """`has_end`: its last line has one; `is_asked`: its owner asked for the edit, by a signal."""
    if found.degree is Degree.NOTHING:
        return RestPeriod(0, "")
    keys = ", ".join(found.keys[:3]) + (" and more" if len(found.keys) > 3 else "")
    if writing is Writing.OPEN:
        return RestPeriod(None, f"it allows more ({keys}), and a program has the file open for writing")
    if is_asked:
        return RestPeriod(0, "")
    if found.degree is Degree.UNBOUNDED:
        return RestPeriod(None, f"{keys} is gone: write it (limits: [] for none), or reload (SIGHUP)")
    if found.degree is Degree.GONE:
        return RestPeriod(
            LONG_REST_NS, f"it allows more, and is without {keys}; a reload (SIGHUP) takes it now"
        )
    if not has_end:
        return RestPeriod(
            LONG_REST_NS, f"it allows more ({keys}), and its last line does not end with a newline"
        )
    return RestPeriod(REST_NS if writing is Writing.CLOSED else UNSURE_REST_NS, f"it allows more ({keys})")


def pairs(old: Policy, new: Policy) -> Iterator[tuple[str, str | None]]:
    """Yield each upstream of the new policy and the one that it was: by its name, else by its account."""
    by_history = {old.history_path(name): name for name in old.upstreams if name not in new.upstreams}
    for name in new.upstreams:
        yield name, name if name in old.upstreams else by_history.get(new.history_path(name))


def _more(old: Policy, new: Policy) -> Iterator[str]:
    """Yield the keys by which a new policy allows more, or may."""
    for key in Policy.model_fields:
        match key:
            case "upstreams":
                yield from _more_upstreams(old, new)
            case _ if getattr(old, key) == getattr(new, key) and key != "lanes":
                continue
            case "recent":
                continue  # what is kept for `relay find` sends nothing
            case "lanes":
                if not _is_lower_ceilings(old.lanes, new.lanes):
                    yield "lanes"
            case "reports":
                before, after = old.reports.per_hour, new.reports.per_hour
                if after is None or (before is not None and after > before):
                    yield "reports.per_hour"
            case _:
                yield key


def _more_upstreams(old: Policy, new: Policy) -> Iterator[str]:
    was = dict(pairs(old, new))
    for name in old.upstreams:
        if name not in was.values():
            yield f"upstreams.{name}"
    if was[new.default_upstream] != old.default_upstream:
        yield "upstreams"
    for name, before in was.items():
        if before is None:
            yield f"upstreams.{name}"
        else:
            upstream = new.upstreams[name]
            if old.history_path(before) != new.history_path(name):
                yield f"upstreams.{name}.history"
            for key in Upstream.model_fields:
                if not _is_no_more(key, old.upstreams[before], upstream):
                    yield f"upstreams.{name}.{written_key(Upstream, key)}"


def _is_no_more(key: str, old: Upstream, new: Upstream) -> bool:
    before, after = getattr(old, key), getattr(new, key)
    if before == after or key in _ALLOWS_NOTHING:
        return True
    if key in _FEWER_IS_LESS:
        return bool(after < before)
    match key:
        case "limits":
            return all(_is_within(limit, new.limits) for limit in old.limits)
        case "guard_ns":
            # By default at most so long.
            return after is not None and after >= (LONGEST_DEFAULT_GUARD_NS if before is None else before)
        case "max_transaction_ns":
            return bool(after > before)
        case _:
            return False


def _is_within(limit: LimitSettings, others: tuple[LimitSettings, ...]) -> bool:
    """Return whether one of the others lets through no more than a limit does."""
    return any(
        other.unit == limit.unit
        and other.count <= limit.count
        and other.per_ns >= limit.per_ns
        and other.for_each in (limit.for_each, None)
        for other in others
    )


def _is_lower_ceilings(old: Mapping[str, LaneSettings], new: Mapping[str, LaneSettings]) -> bool:
    """Return whether lanes differ by ceilings at most, which are lower or new."""
    # The first lane that matches counts, so their order does; mappings are equal in any.
    return list(old) == list(new) and all(
        lane.model_copy(update={"ceiling": None}) == new[name].model_copy(update={"ceiling": None})
        and (new[name].ceiling or 100) <= (lane.ceiling or 100)
        and (new[name].ceiling is not None or lane.ceiling is None)
        for name, lane in old.items()
    )


def _unbounded(old: Policy, new: Policy) -> Iterator[Gone]:
    """Yield the keys that are gone and not to be believed gone."""
    was = dict(pairs(old, new))
    gone = [upstream for name, upstream in old.upstreams.items() if name not in was.values()]
    for name, before in was.items():
        upstream = new.upstreams[name]
        # What is new may be what has gone, half written.
        others = gone if before is None else [old.upstreams[before]]
        for key in _TO_BE_WRITTEN:
            if not _iswritten_key(upstream, key) and any(_would_go(other, upstream, key) for other in others):
                steps: Steps = ("upstreams", name, key)
                is_null = key in upstream.model_fields_set and getattr(upstream, key) is None
                yield Gone(steps, steps if is_null else steps[:-1])


def _iswritten_key(upstream: Upstream, key: str) -> bool:
    value = getattr(upstream, key)
    return key in upstream.model_fields_set and value is not None and not _is_preset(upstream, key)


def _would_go(old: Upstream, new: Upstream, key: str) -> bool:
    """Return whether there was more behind a key than a preset that follows another preset."""
    return bool(getattr(old, key)) and not (_is_preset(old, key) and _is_preset(new, key))


def _is_preset(upstream: Upstream, key: str) -> bool:
    return key == "limits" and upstream.limits != () and upstream.limits == preset_limits(upstream.provider)


def _all_gone(old: Policy, new: Policy) -> Iterator[Gone]:
    """Yield the keys that the policy in force has, as they are written, and the new one lacks."""
    was = dict(pairs(old, new))
    yield from (
        Gone(("upstreams", name), ("upstreams",)) for name in old.upstreams if name not in was.values()
    )
    for name, before in was.items():
        is_other = before is None or old.history_path(before) != new.history_path(name)
        if is_other and "limits" not in new.upstreams[name].model_fields_set:
            # An account that is new: nothing says whether it is to have some.
            yield Gone(("upstreams", name, "limits"), ("upstreams", name))
        if before is not None:
            yield from _gone(old.upstreams[before], new.upstreams[name], ("upstreams", name))
            yield from _cut_limit(old.upstreams[before], new.upstreams[name], ("upstreams", name, "limits"))
    for key in Policy.model_fields:
        if key not in RESTART_KEYS and key != "upstreams":
            yield from _gone_key(old, new, key, (key,))


def _cut_limit(old: Upstream, new: Upstream, steps: Steps) -> Iterator[Gone]:
    """Yield what the last limit lacks of those that are no more: it may be the first half of one."""
    if new.limits:
        last = new.limits[-1]
        lost = (limit for limit in old.limits if not _is_within(limit, new.limits))
        for limit in lost:
            if limit.unit == last.unit:
                yield from _gone(limit, last, (*steps, len(new.limits) - 1))


def _gone(old: object, new: object, steps: Steps) -> Iterator[Gone]:
    match old, new:
        case Section(), Section() if type(old) is type(new):
            for key in type(old).model_fields:
                yield from _gone_key(old, new, key, (*steps, written_key(type(old), key)))
        case dict(), dict():
            for key, value in old.items():
                if key in new:
                    yield from _gone(value, new[key], (*steps, key))
                else:
                    yield Gone((*steps, key), steps)
        case tuple(), tuple() if len(new) < len(old):
            yield Gone(steps, steps)
        case _:
            return


def _gone_key(old: Section, new: Section, key: str, steps: Steps) -> Iterator[Gone]:
    before, after = getattr(old, key), getattr(new, key)
    if before == after:
        return
    if key in new.model_fields_set and after is None:
        # With nothing behind it a key is null, as much as where null is written.
        yield Gone(steps, steps)
    elif key in old.model_fields_set and key not in new.model_fields_set:
        yield Gone(steps, steps[:-1])
    else:
        yield from _gone(before, after, steps)
