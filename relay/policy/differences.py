"""What an edit changes of a policy: each key once, and what needs a restart.  Pure.

Policies are compared as they are written out, and told so (`Section.as_written`): nothing that may be
secret is told.  Guarantees: two policies without a difference here mean the same, but for what is hidden (the
path of a hook's URL, the name of a credential).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from relay.policy.model import RESTART_KEYS, Policy
from relay.policy.units import written_key

_RESTART = frozenset(written_key(Policy, key) for key in RESTART_KEYS)
_LONGEST_LINE = 1_000_000


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that another policy has, lacks, or has otherwise."""

    about: str
    """The key, such as `upstreams.isp.limits`."""
    was: str | None
    """As a policy has it; None: it was added."""
    now: str | None
    """None: it was removed."""
    needs_restart: bool = False

    @property
    def words(self) -> str:
        """Return what was and what is now: `upstreams.isp.connections: 4 → 5`."""
        return f"{self.about}: {' → '.join(each for each in (self.was, self.now) if each is not None)}"

    @property
    def sign(self) -> str:
        """Return + for what was added, - for what was removed, ~ for what is another."""
        return "+" if self.was is None else "-" if self.now is None else "~"


def changes_needing_restart(old: Policy, new: Policy) -> list[str]:
    """Return the fields; `written_key` says what a policy calls them."""
    return [key for key in RESTART_KEYS if getattr(old, key) != getattr(new, key)]


def differences(old: Policy, new: Policy) -> list[Difference]:
    found = list(_between("", old.as_written(), new.as_written()))
    before, after = old.default_upstream, new.default_upstream
    if before != after:
        found.insert(0, ("first of upstreams", before, after))
    return [Difference(about, was, now, about.partition(".")[0] in _RESTART) for about, was, now in found]


def policy_text(policy: Policy) -> str:
    """Return a policy file that means the same, but for what it hides (`Section.as_written`)."""
    return _yaml(policy.as_written(), is_flow=None)


def _between(about: str, old: object, new: object) -> Iterator[tuple[str, str | None, str | None]]:
    match old, new:
        case dict(), dict():
            for key in dict.fromkeys([*old, *new]):
                below = f"{about}.{key}" if about else key
                if key not in old or key not in new:
                    was, now = (_yaml(its[key]) if key in its else None for its in (old, new))
                    yield (below, was, now)
                else:
                    yield from _between(below, old[key], new[key])
            if set(old) == set(new) and list(old) != list(new):
                yield (f"order of {about}", ", ".join(old), ", ".join(new))
        case list(), list() if any(each not in new for each in old) or any(each not in old for each in new):
            yield from ((about, _yaml(each), None) for each in old if each not in new)
            yield from ((about, None, _yaml(each)) for each in new if each not in old)
        case _ if old != new:
            yield (about, _yaml(old), _yaml(new))


def _yaml(value: object, *, is_flow: bool | None = True) -> str:
    text: str = yaml.safe_dump(
        value, default_flow_style=is_flow, sort_keys=False, allow_unicode=True, width=_LONGEST_LINE
    )
    return text.removesuffix("...\n").rstrip("\n") if is_flow else text
