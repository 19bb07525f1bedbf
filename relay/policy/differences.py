"""What an edit changes of a policy, in words for people: each key or limit once.  Pure.

Guarantees: two policies without a difference here mean the same.  Nothing that may be secret is
told: of a hook's URL, its host alone.

An upstream that is renamed, with its account, is the same one (`loosening.pairs`).  Limits are
paired where only their N or their T is another; what has no partner was added or removed.  Keys
with presets are compared with these filled in, so a change of `provider` shows all that it brings.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from relay.policy.hook import HookSettings
from relay.policy.limits import LimitSettings
from relay.policy.loosening import RESTART_KEYS, pairs
from relay.policy.model import Listen, Policy, Upstream
from relay.policy.units import Section
from relay.policy.written_out import value_text, written_key, written_value


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that another policy has, lacks, or has otherwise."""

    about: str
    """What it is part of, such as the name of an upstream; empty for the policy itself."""
    was: str | None
    """None: it was added."""
    now: str | None
    """None: it was removed."""
    needs_restart: bool = False

    @property
    def words(self) -> str:
        """Return what was and what is now: `isp: 20 → 40 messages in any 10s`."""
        about = f"{self.about}: " if self.about else ""
        before, after = self.was or "", self.now or ""
        number, _, rest = before.partition(" ")
        if number[:1].isdigit() and rest and after.partition(" ")[2] == rest:
            before = number
        return about + " → ".join(filter(None, (before, after)))

    @property
    def sign(self) -> str:
        """Return + for what was added, - for what was removed, ~ for what is another."""
        return "+" if self.was is None else "-" if self.now is None else "~"


def differences(old: Policy, new: Policy) -> list[Difference]:
    """Return them in the order of a policy's keys."""
    return list(_of_policies(old, new))


def limit_text(limit: LimitSettings) -> str:
    """Return a limit in words: `8 messages in any 1m for each sender`."""
    return limit.words()


def _of_policies(old: Policy, new: Policy) -> Iterator[Difference]:
    for key in Policy.model_fields:
        before, after = getattr(old, key), getattr(new, key)
        needs_restart = key in RESTART_KEYS
        match key:
            case "upstreams":
                yield from _of_upstreams(old, new)
            case "lanes":
                yield from _of_names("lane", before, after)
                if list(before) != list(after) and set(before) == set(after):
                    yield Difference("order of lanes", ", ".join(before), ", ".join(after))
            case "listen":
                yield from _of_listeners(before, after)
            case _:
                yield from _of_values(written_key(Policy, key), before, after, needs_restart=needs_restart)


def _of_upstreams(old: Policy, new: Policy) -> Iterator[Difference]:
    was = dict(pairs(old, new))
    if (before := old.default_upstream) != (after := new.default_upstream):
        yield Difference("mail goes through", before, after)
    for name, upstream in old.upstreams.items():
        if name not in was.values():
            yield Difference("upstream", _brief(name, upstream), None)
    for name, upstream in new.upstreams.items():
        if (known := was[name]) is None:
            yield Difference("upstream", None, _brief(name, upstream))
            for limit in upstream.limits:
                yield Difference(name, None, limit_text(limit))
            continue
        if known != name:
            yield Difference("name of an upstream", known, name)
        yield from _of_sections(name, old.upstreams[known], upstream)
        paths = old.history_path(known), new.history_path(name)
        if paths[0] != paths[1] and old.upstreams[known].history == upstream.history:
            # By default it is beside the spool.
            yield Difference(f"{name}.history", str(paths[0]), str(paths[1]), old.spool != new.spool)


def _brief(name: str, upstream: Upstream) -> str:
    return f"{name}, {upstream.host} port {upstream.port}"


def _of_listeners(old: Sequence[Listen], new: Sequence[Listen]) -> Iterator[Difference]:
    before, after = ({str(each.address): each for each in listeners} for listeners in (old, new))
    yield from _of_names("listen", before, after, needs_restart=True)
    if len(before) != len(old) or len(after) != len(new):
        # Several on port 0, which are told apart by their order alone.
        yield from _of_elements("listen", map(value_text, old), map(value_text, new), needs_restart=True)


def _of_names(
    kind: str, old: Mapping[str, Section], new: Mapping[str, Section], *, needs_restart: bool = False
) -> Iterator[Difference]:
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name), new.get(name)
        if before is not None and after is not None:
            yield from _of_sections(f"{kind} {name}", before, after, needs_restart=needs_restart)
        else:
            was, now = (None if each is None else value_text(each) for each in (before, after))
            yield Difference(f"{kind} {name}", was, now, needs_restart)


def _of_sections(
    about: str, old: Section, new: Section, *, needs_restart: bool = False
) -> Iterator[Difference]:
    for name in type(old).model_fields:
        before, after = (written_value(name, getattr(each, name)) for each in (old, new))
        where = f"{about}.{written_key(type(old), name)}"
        if isinstance(old, Upstream) and isinstance(new, Upstream) and name == "limits":
            yield from _of_limits(about, old.limits, new.limits)
        else:
            yield from _of_values(where, before, after, needs_restart=needs_restart)


def _of_values(about: str, before: object, after: object, *, needs_restart: bool) -> Iterator[Difference]:
    if before == after:
        return
    match before, after:
        case Section(), Section() if type(before) is type(after):
            yield from _of_sections(about, before, after, needs_restart=needs_restart)
        case tuple(), tuple() if set(map(_element, before)) != set(map(_element, after)):
            yield from _of_elements(
                about, map(_element, before), map(_element, after), needs_restart=needs_restart
            )
        case _:
            yield Difference(about, _value(before), _value(after), needs_restart)


def _of_limits(
    about: str, old: Sequence[LimitSettings], new: Sequence[LimitSettings]
) -> Iterator[Difference]:
    gone, added = [each for each in old if each not in new], [each for each in new if each not in old]
    for is_alike in (_has_another_n, _has_another_t):
        for before in list(gone):
            after = next((each for each in added if is_alike(before, each)), None)
            if after is not None:
                gone.remove(before)
                added.remove(after)
                yield Difference(about, limit_text(before), limit_text(after))
    yield from (Difference(about, limit_text(each), None) for each in gone)
    yield from (Difference(about, None, limit_text(each)) for each in added)


def _has_another_n(one: LimitSettings, other: LimitSettings) -> bool:
    return (one.unit, one.for_each, one.per_ns) == (other.unit, other.for_each, other.per_ns)


def _has_another_t(one: LimitSettings, other: LimitSettings) -> bool:
    return (one.unit, one.for_each) == (other.unit, other.for_each)


def _of_elements(
    about: str, old: Iterable[str], new: Iterable[str], *, needs_restart: bool
) -> Iterator[Difference]:
    before, after = list(old), list(new)
    yield from (Difference(about, each, None, needs_restart) for each in before if each not in after)
    yield from (Difference(about, None, each, needs_restart) for each in after if each not in before)


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_element, value))}]"
    return _element(value)


def _element(value: object) -> str:
    match value:
        case HookSettings():
            # The path of a URL may be the receiver's secret.
            return f"{value.shown} told of {', '.join(value.events)}"
        case None | bool() | enum.Enum() | Section() | Mapping():
            return value_text(value)
        case _:
            return str(value)
