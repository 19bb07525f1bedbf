"""What a story must have kept: the six promises (docs/guarantees.md), and that mail which may go, goes.

It knows what clients were told and what upstreams saw, and nothing of the relay's inside.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from relay.clock import SECOND_NS
from relay.policy.limits import LimitSettings
from tests.simulation.client import Copy
from tests.simulation.upstream import Ledger, Seen, Taken

_KEY = re.compile(rb"^X-Copy: (\S+)", re.MULTILINE)
_FATE = re.compile(rb"^Final-Recipient: rfc822; ?(\S+)\r\nAction: (\w+)", re.MULTILINE | re.IGNORECASE)
_TRACE = re.compile(rb"Received: [^\r\n]+\r\n(?:[ \t][^\r\n]*\r\n)*\Z")


class Broken(AssertionError):  # noqa: N818 - of a promise
    """A promise was broken: `promise` is which, for a shorter story to break the same."""

    def __init__(self, promise: str, words: str) -> None:
        super().__init__(f"{promise}: {words}")
        self.promise = promise


@dataclass(frozen=True)
class Regime:
    """The limits of an upstream, for as long as they were the policy's."""

    since_ns: int
    until_ns: int
    limits: Sequence[LimitSettings]


@dataclass(frozen=True)
class Past:
    """All that happened."""

    copies: Sequence[Copy]
    ledgers: dict[str, Ledger]
    regimes: dict[str, list[Regime]]
    crashes_ns: Sequence[int]
    """When processes died, or could not settle what they had relayed."""


def judge(past: Past) -> None:
    """Raise Broken."""
    for name, ledger in past.ledgers.items():
        for regime in past.regimes[name]:
            for limit in regime.limits:
                _never_over(name, ledger, regime, limit)
    _taken_whole(past)
    _never_lost(past)
    _sent_once(past)


def _never_lost(past: Past) -> None:
    fates = _fates(past)
    taken = _taken(past)
    for copy in past.copies:
        if copy.refused:
            raise Broken("taken in", f"{copy.key} was refused: {copy.refused}")
        if not copy.is_accepted:
            continue
        for recipient in copy.recipients:
            is_told = recipient in fates["failed"]
            is_relayed = bool(taken[copy.key, recipient])
            if recipient.startswith("bad"):
                # A report to nobody is none.
                if copy.sender and not is_told:
                    raise Broken("never lost", f"nobody was told that {recipient} of {copy.key} failed")
            elif not is_relayed and not is_told:
                raise Broken("never lost", f"{copy.key} to {recipient} is nowhere")
            elif is_told and not recipient.startswith("bad"):
                raise Broken("never cut off by us", f"{copy.key} to {recipient} was returned")


def _sent_once(past: Past) -> None:
    for (key, recipient), times in _taken(past).items():
        for before, after in pairwise(times):
            # What a process sent before it died may be taken later than what the next one sent.
            since_ns = min(before.begun_ns, after.begun_ns)
            is_excused = any(since_ns <= crash_ns <= after.true_ns for crash_ns in past.crashes_ns)
            if before.is_told and not is_excused:
                raise Broken(
                    "duplicates only in the window",
                    f"{key} to {recipient} went at {_s(before.true_ns)} and at {_s(after.true_ns)}",
                )


def _taken_whole(past: Past) -> None:
    contents = {copy.key: copy for copy in past.copies}
    for taken in _all_taken(past):
        if _is_report(taken):
            continue
        found = _KEY.search(taken.content)
        copy = contents.get(found[1].decode()) if found else None
        if copy is None or not copy.is_sent:
            raise Broken("bytes unchanged", f"nobody sent what {taken.upstream} took at {_s(taken.true_ns)}")
        trace = taken.content.removesuffix(copy.content)
        if not _TRACE.fullmatch(trace) or trace == taken.content:
            raise Broken("bytes unchanged", f"{copy.key} was changed: {taken.content[:300]!r}")
        if not set(taken.recipients) <= set(copy.recipients):
            raise Broken("bytes unchanged", f"{copy.key} went to {taken.recipients}")


def _never_over(name: str, ledger: Ledger, regime: Regime, limit: LimitSettings) -> None:
    for instants in _instants(ledger, limit):
        keyed: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for seen, weight in instants:
            if regime.since_ns <= seen.true_ns <= regime.until_ns:
                keyed[_key_of(seen, limit)].append((seen.true_ns, weight))
        for key, events in keyed.items():
            _no_window_over(name, limit, key, sorted(events))


def _no_window_over(name: str, limit: LimitSettings, key: str, events: list[tuple[int, int]]) -> None:
    first, used = 0, 0
    for at_ns, weight in events:
        used += weight
        while events[first][0] <= at_ns - limit.per_ns:
            used -= events[first][1]
            first += 1
        if used > limit.count:
            words = f"{name} saw {used} {limit.unit} of at most {limit.count} in the window to {_s(at_ns)}"
            raise Broken("never over", f"{words}, {key}")


def _instants(ledger: Ledger, limit: LimitSettings) -> Iterable[list[tuple[Seen, int]]]:
    """Yield, for each way in which an upstream may count, what it counted."""
    one: Callable[[Seen], int] = lambda _: 1  # noqa: E731 - a table of three
    ways: dict[str, dict[str, Callable[[Seen], int]]] = {
        "messages": {"mail": one, "dot": one, "counted": one},
        "recipients": {"rcpt": one, "dot": lambda seen: seen.recipients},
        "bytes": {"mail": lambda seen: seen.size_bytes, "dot": lambda seen: seen.size_bytes},
        "connections": {"connect": one},
    }
    for what, weight in ways[limit.unit].items():
        yield [(seen, weight(seen)) for seen in ledger.seen if seen.what == what]


def _key_of(seen: Seen, limit: LimitSettings) -> str:
    match limit.for_each:
        case None:
            return "all"
        case "sender":
            return seen.sender
        case "sender_domain":
            return seen.sender.rpartition("@")[2]
        case "recipient_domain" if seen.what == "rcpt":
            return seen.recipient.rpartition("@")[2]
        case _:
            # Not told at this instant: a key each, so that nothing is over.
            return f"{seen.what} at {seen.true_ns} {id(seen)}"


def _all_taken(past: Past) -> list[Taken]:
    taken = [each for ledger in past.ledgers.values() for each in ledger.taken]
    return sorted(taken, key=lambda each: each.true_ns)


def _taken(past: Past) -> dict[tuple[str, str], list[Taken]]:
    """Return by copy and recipient each time that an upstream took it; reports left out."""
    times: dict[tuple[str, str], list[Taken]] = defaultdict(list)
    for taken in _all_taken(past):
        if _is_report(taken):
            continue
        if found := _KEY.search(taken.content):
            for recipient in taken.recipients:
                times[found[1].decode(), recipient].append(taken)
    return times


def _fates(past: Past) -> dict[str, set[str]]:
    """Return by action (`failed`, `delayed`, `relayed`) the recipients that reports told of.

    Each recipient has a name of its own.  A report lacks the original's header where that was unreadable.
    """
    fates: dict[str, set[str]] = defaultdict(set)
    for taken in _all_taken(past):
        if _is_report(taken):
            for recipient, action in _FATE.findall(taken.content):
                fates[action.decode().lower()].add(recipient.decode())
    return fates


def _is_report(taken: Taken) -> bool:
    return not taken.sender and b"\r\nAuto-Submitted: auto-" in taken.content


def _s(true_ns: int) -> str:
    return f"{true_ns / SECOND_NS:.3f} s"
