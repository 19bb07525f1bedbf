"""What happens in a story, as data: so that it can be drawn, printed, and shortened.

Instants are seconds since the story began, by the upstreams' clock.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from relay.control.operations import Verb
from tests.simulation.upstream import Mood


@dataclass(frozen=True)
class Send:
    """A client hands a message over, again and again until it is taken."""

    at_s: float
    number: int
    sender: str
    recipients: tuple[str, ...]
    lines: int
    is_8bit: bool = False

    def __str__(self) -> str:
        return (
            f"client sends {self.number}: <{self.sender}> to {', '.join(self.recipients)}, {self.lines} lines"
        )


@dataclass(frozen=True)
class Act:
    """An operator does something, to an upstream or to some messages."""

    at_s: float
    verb: Verb
    upstream: str = ""
    seconds: int = 0

    def __str__(self) -> str:
        return f"operator: {self.verb} {self.upstream} {self.seconds or ''}".rstrip()


@dataclass(frozen=True)
class Feel:
    at_s: float
    upstream: str
    mood: Mood
    seconds: float

    def __str__(self) -> str:
        return f"{self.upstream} {self.mood}, for {self.seconds:g} s"


@dataclass(frozen=True)
class Edit:
    """The policy becomes the world's variant of this number."""

    at_s: float
    variant: int

    def __str__(self) -> str:
        return f"the policy becomes variant {self.variant}"


@dataclass(frozen=True)
class SetClock:
    """The wall clock is set; or the host is suspended; or the relay's process is stopped and continued."""

    at_s: float
    how: str
    seconds: int

    def __str__(self) -> str:
        return f"clock: {self.how} {self.seconds} s"


@dataclass(frozen=True)
class Disturb:
    """A disk is full, or fails; or connections are lost."""

    at_s: float
    how: str
    seconds: float
    nth: int = 1

    def __str__(self) -> str:
        return f"disturbance: {self.how} for {self.seconds:g} s (call {self.nth})"


@dataclass(frozen=True)
class Crash:
    """A relay is killed, or all lose power, so many changes of the disk behind this instant."""

    at_s: float
    kind: str
    steps: int
    down_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.steps} steps of the disk later; down for {self.down_s:g} s"


Event = Send | Act | Feel | Edit | SetClock | Disturb | Crash


@dataclass(frozen=True)
class Script:
    world: str
    seed: int
    """Of everything that is drawn while the story runs: delays, cuts, what a lost power leaves."""
    engine: str
    events: tuple[Event, ...]

    def without(self, gone: Sequence[int]) -> "Script":
        left = tuple(event for number, event in enumerate(self.events) if number not in set(gone))
        return Script(self.world, self.seed, self.engine, left)


@dataclass(frozen=True)
class World:
    """A policy with its variants, and what may be drawn under it."""

    name: str
    policies: tuple[str, ...]
    """YAML; `{ENGINE}` is the engine.  The first one holds from the beginning."""
    upstreams: tuple[str, ...] = ("isp",)
    relays: int = 1
    messages: int = 14
    minutes: float = 4.0
    moods: tuple[Mood, ...] = tuple(Mood)
    acts: tuple[Verb, ...] = ("hold", "release", "retry", "pause", "resume")
    senders: tuple[str, ...] = ("s{n}@here.test",)
    domains: tuple[str, ...] = ("x.test",)
    lines: tuple[int, ...] = (1, 10, 300)
    weights: Mapping[str, int] = field(default_factory=dict)
    """How many of each kind of event are drawn at most, beside messages."""
    calm_s: float = 900.0
    """Once nothing disturbs any more, all mail is gone in this time, and what the limits ask."""


MOST: Mapping[str, int] = {"act": 4, "feel": 4, "edit": 0, "clock": 0, "disturb": 1, "crash": 3}


def drawn(world: World, seed: int, engine: str) -> Script:
    """Return a story of this world; equal seeds give equal stories."""
    rng = random.Random(f"{world.name}/{seed}/{engine}")
    length_s = rng.uniform(5, world.minutes * 60)
    events: list[Event] = []
    for number in range(1, rng.randint(1, world.messages) + 1):
        # Often several at once.
        at_s = events[-1].at_s if events and rng.random() < 0.5 else rng.uniform(0, length_s)
        events.append(_message(world, rng, number, at_s))
    most = {**MOST, **world.weights}

    def times(kind: str) -> Sequence[float]:
        return sorted(rng.uniform(0, length_s) for _ in range(rng.randint(0, most[kind])))

    events += [
        Act(at_s, rng.choice(world.acts), rng.choice(world.upstreams), rng.choice((1, 20)))
        for at_s in (times("act") if world.acts else ())
    ]
    for at_s in times("feel") if world.moods else ():
        mood = rng.choice(world.moods)
        events.append(Feel(at_s, rng.choice(world.upstreams), mood, rng.choice((1.0, 20.0, 90.0))))
    events += [Edit(at_s, rng.randrange(len(world.policies))) for at_s in times("edit")]
    for at_s in times("clock"):
        how = rng.choice(("step", "step back", "suspend", "stop"))
        events.append(SetClock(at_s, how, rng.choice((1, 30, 400, 31_536_000 if "step" in how else 4_000))))
    for at_s in times("disturb"):
        how = rng.choice(("disk full", "sync fails", "read fails", "connections reset", "connections silent"))
        events.append(Disturb(at_s, how, rng.choice((0.5, 10.0, 60.0)), rng.randint(1, 60)))
    for at_s in times("crash"):
        kind, steps = rng.choice(("kill", "power", "power")), rng.randint(1, 200)
        events.append(Crash(at_s, kind, steps, rng.choice((0.0, 3.0, 100.0))))
    return Script(world.name, seed, engine, tuple(sorted(events, key=lambda event: event.at_s)))


def _message(world: World, rng: random.Random, number: int, at_s: float) -> Send:
    kinds = [rng.choice(("ok", "ok", "ok", "later", "bad")) for _ in range(rng.choice((1, 1, 2, 3)))]
    recipients = tuple(
        f"{kind}{number}-{index}@{rng.choice(world.domains)}" for index, kind in enumerate(kinds)
    )
    sender = rng.choice(world.senders).format(n=number)
    return Send(at_s, number, sender, recipients, rng.choice(world.lines), rng.random() < 0.2)
