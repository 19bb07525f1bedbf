"""The past of a story: what clients and operators were told, and what upstreams saw and took."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from relay.clock import SECOND_NS
from relay.control.operations import ABSENT, BUSY, OK, UNCHANGED, UNREAD, Results
from relay.policy.lane import LimitSettings
from tests.simulation.client import Copy
from tests.simulation.script import Script, World
from tests.simulation.upstream import FAILING, Ledger, Taken

Limits = Mapping[str, Sequence[LimitSettings]]
"""The limits of each upstream."""
RESULTS = (OK, UNCHANGED, ABSENT, BUSY, UNREAD)
"""The results that say whether something was done."""
_KEY = re.compile(rb"^X-Copy: (\S+)", re.MULTILINE)
_FATE = re.compile(rb"^Final-Recipient: rfc822; ?(\S+)\r\nAction: (\w+)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Regime:
    """The limits of an upstream while one policy held."""

    since_ns: int
    until_ns: int
    limits: Sequence[LimitSettings]


@dataclass
class Orders:
    """The orders of operators, and the answers."""

    paused: list[tuple[str, int, int]] = field(default_factory=list)
    """Upstream, begin, end."""
    resumed: list[tuple[str, int]] = field(default_factory=list)
    held: list[tuple[str, int, int]] = field(default_factory=list)
    """Message, begin, end."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Message, and since when."""
    bounced: set[str] = field(default_factory=set)
    unsure: list[str] = field(default_factory=list)
    """Messages that may be deleted or bounced, once for each answer that was missing or an error."""
    _holding: dict[str, int] = field(default_factory=dict)

    def asked(self, verb: str, queue_ids: Iterable[str], now_ns: int) -> None:
        for queue_id in queue_ids:
            if verb != "hold" and queue_id in self._holding:
                self.held.append((queue_id, self._holding.pop(queue_id), now_ns))
            if verb in ("bounce", "delete"):
                self.unsure.append(queue_id)

    def answered(self, verb: str, results: Results, now_ns: int) -> None:
        for queue_id, result in results.items():
            if result in RESULTS and verb in ("bounce", "delete"):
                self.unsure.remove(queue_id)
            match verb if result == OK else None:
                case "hold":
                    self._holding[queue_id] = now_ns
                case "bounce":
                    self.bounced.add(queue_id)
                case "delete":
                    self.deleted[queue_id] = now_ns

    def may_have_bounced(self, queue_id: str) -> bool:
        return queue_id in self.bounced or queue_id in self.unsure

    def all_is_released(self, now_ns: int) -> None:
        self.held += [(queue_id, since_ns, now_ns) for queue_id, since_ns in self._holding.items()]
        self._holding.clear()
        self.paused = [(name, since_ns, min(until_ns, now_ns)) for name, since_ns, until_ns in self.paused]


class Blow(NamedTuple):
    """An event after which a relay may not know, or not have settled, what it had relayed."""

    at_ns: int
    relay: str = ""
    """The relay's name; empty: any relay."""
    is_late: bool = False
    """What the relay began before is sent only now, when others may have taken the message over."""


class Passed:
    """What upstreams took so far, in order."""

    def __init__(self, ledgers: Mapping[str, Ledger], copies: Sequence[Copy]) -> None:
        self._copies = copies
        every = [taken for ledger in ledgers.values() for taken in ledger.taken]
        every.sort(key=lambda taken: taken.true_ns)
        self.messages = [taken for taken in every if not taken.is_report]
        self.reports = [taken for taken in every if taken.is_report]
        self.taken: dict[tuple[str, str], list[Taken]] = {}
        """By copy and recipient, without reports."""
        self.told: dict[tuple[str, str, str], list[Taken]] = {}
        """The reports, by copy, recipient and action (`failed`, `delayed`, `relayed`)."""
        for taken in self.messages:
            for recipient in taken.recipients:
                self.taken.setdefault((key_of(taken.content), recipient), []).append(taken)
        # A report lacks the original's header if that was unreadable. Then it belongs to the accepted copy.
        accepted = {name: copy.key for copy in copies if copy.is_accepted for name in copy.recipients}
        for taken in self.reports:
            for name, action in _FATE.findall(taken.content):
                recipient = name.decode()
                key = key_of(taken.content) or accepted.get(recipient, "")
                self.told.setdefault((key, recipient, action.decode().lower()), []).append(taken)

    def taken_of(self, copy: Copy, recipient: str) -> Sequence[Taken]:
        return self.taken.get((copy.key, recipient), ())

    def told_of(self, copy: Copy, recipient: str, action: str) -> Sequence[Taken]:
        return self.told.get((copy.key, recipient, action), ())

    def ended_ns(self) -> dict[str, int]:
        """Return, by copy, when the last recipient that is not FAILING was relayed or reported as failed."""
        ends: dict[str, int] = {}
        for copy in self._copies:
            wanted = [each for each in copy.recipients if not each.startswith(FAILING)]
            times = [self.taken_of(copy, each) or self.told_of(copy, each, "failed") for each in wanted]
            if all(times):
                ends[copy.key] = max((some[0].true_ns for some in times), default=copy.accepted_ns)
        return ends

    def gone_ns(self) -> dict[str, int]:
        """Return, by copy, when its reports have left too. A copy with reports to come is left out."""
        told_ns: dict[str, int] = {}
        for (key, _, _), some in self.told.items():
            told_ns[key] = max(told_ns.get(key, 0), *(each.true_ns for each in some))
        reported = {copy.key for copy in self._copies if copy.may_be_reported}
        return {
            key: max(at_ns, told_ns.get(key, 0))
            for key, at_ns in self.ended_ns().items()
            if key in told_ns or key not in reported
        }


@dataclass
class Past:
    """All that happened in a story."""

    world: World
    script: Script
    limits: Limits
    """The limits at the beginning."""
    ledgers: dict[str, Ledger]
    regimes: dict[str, list[Regime]]
    blows: list[Blow] = field(default_factory=list)
    orders: Orders = field(default_factory=Orders)
    copies: Sequence[Copy] = ()
    set_aside: Sequence[str] | None = None
    """The reported damage; None if nothing was damaged."""
    calm_since_ns: int = 0
    """The instant from which nothing disturbs any more."""

    @cached_property
    def passed(self) -> Passed:
        """Return what upstreams had taken at the end."""
        return Passed(self.ledgers, self.copies)


def in_s(true_ns: int) -> str:
    return f"{true_ns / SECOND_NS:.3f} s"


def key_of_sender(sender: str, limit: LimitSettings) -> str:
    """Return the key under which a limit counts this sender's messages; "all" if it does not depend on it."""
    match limit.for_each:
        case "sender":
            return sender
        case "sender_domain":
            return sender.rpartition("@")[2]
        case _:
            return "all"


def key_of(content: bytes) -> str:
    """Return the copy's key that this content, or report, contains; an empty string if none."""
    found = _KEY.search(content)
    return found[1].decode() if found else ""
