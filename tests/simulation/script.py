"""The events of a story as data, so that they can be drawn, printed and shortened.

Instants are seconds since the story began, by the upstreams' clock.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from relay.control.operations import Verb
from tests.simulation.upstream import Mood


@dataclass(frozen=True)
class Send:
    """A client hands a message over, and repeats it until it is accepted."""

    at_s: float
    number: int
    sender: str
    recipients: tuple[str, ...]
    lines: int
    is_8bit: bool = False
    notify: tuple[str, ...] = ()
    """NOTIFY of each recipient; empty: none."""
    ret: str = ""
    subject: str = ""


@dataclass(frozen=True)
class Act:
    """An operator's verb, on an upstream or on some messages."""

    at_s: float
    verb: Verb
    upstream: str = ""
    seconds: int = 0


@dataclass(frozen=True)
class Feel:
    at_s: float
    upstream: str
    mood: Mood
    seconds: float


@dataclass(frozen=True)
class Edit:
    """The world's policy variant of this number comes into force."""

    at_s: float
    variant: int


@dataclass(frozen=True)
class SetClock:
    """The wall clock is set, or the host is suspended, or a relay's process is stopped and continued."""

    at_s: float
    how: str
    """With `stop`, a relay makes no step while all else goes on."""
    seconds: int


NO_NEWS = "database: no news"
"""Hosts get no notifications: they learn another host's commits only when they ask."""
CUT = "database: a host is cut off"


@dataclass(frozen=True)
class Disturb:
    """A disk is full or fails, or connections are lost, or the database is away."""

    at_s: float
    how: str
    seconds: float
    nth: int = 1


FOR_GOOD_S = 1e6


@dataclass(frozen=True)
class Crash:
    """A relay is killed or all lose power, `steps` disk changes or database requests after this instant."""

    at_s: float
    kind: str
    steps: int
    down_s: float


@dataclass(frozen=True)
class Damage:
    """Octets of one file at rest change."""

    at_s: float
    where: str
    """`spool` or `history`."""
    how: str
    """`flip` or `zero`."""
    nth: int
    """The index of the file, in the order of names."""
    place: float
    """The position in the file, from 0 to 1."""
    down_s: float
    """The relays are killed and start this much later; 0: they keep running."""


Event = Send | Act | Feel | Edit | SetClock | Disturb | Crash | Damage


@dataclass(frozen=True)
class Script:
    world: str
    seed: int
    """The seed of all that is drawn while the story runs: delays, cuts, what a power cut leaves."""
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
    """YAML; `{ENGINE}` stands for the engine. The first variant holds at the beginning."""
    upstreams: tuple[str, ...] = ("isp",)
    relays: int = 1
    is_shared: bool = False
    """Each relay is on its own host, and they share a database."""
    engines: tuple[str, ...] = ("maildir", "log")
    """Engines of the spool. The PostgreSQL engine is one queue of all hosts."""
    messages: int = 14
    minutes: float = 4.0
    look_s: float = 1.0
    """The interval in which a relay checks its files."""
    again_s: float = 15.0
    """The interval in which a client tries again."""
    retry_max_s: float = 9.0
    moods: tuple[Mood, ...] = tuple(Mood)
    lasting_s: tuple[float, ...] = (1.0, 20.0, 90.0)
    """The possible lengths of a mood."""
    acts: tuple[Verb, ...] = ("hold", "release", "retry", "pause", "resume")
    senders: tuple[str, ...] = ("s{n}@here.test",)
    domains: tuple[str, ...] = ("x.test",)
    lines: tuple[int, ...] = (1, 10, 300)
    kinds: tuple[str, ...] = ("ok", "ok", "ok", "later", "bad")
    """Prefixes of recipients' names, which decide what the upstream does with them."""
    notifies: tuple[str, ...] = ()
    """Values of NOTIFY that clients use, with ORCPT and ENVID."""
    rets: tuple[str, ...] = ("",)
    subjects: tuple[str, ...] = ("Hello",)
    recipients: tuple[int, ...] = (1, 1, 2, 3)
    """The number of recipients of a message."""
    half_of_all: tuple[str, ...] = ()
    """The senders of a lane with share 50. In a world with lanes all other senders take turns."""
    routes: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """By recipient domain: the first upstream, and the seconds after which mail spills (0: never)."""
    most_recipients: int = 1_000
    """The most recipients that an upstream accepts in one transaction."""
    rewrite: str = ""
    """The address that replaces all senders of this world."""
    lifetime_ns: int = 0
    """`retry.lifetime`, if a story may last that long; 0: never reached."""
    warn_after_ns: int = 0
    """`warn_after`; 0: never."""
    warns_of_waiting: bool = False
    """Senders of untried mail are warned too; only clients act in such a world."""
    ceiling_percent: int = 100
    """The lowest ceiling of a lane, in percent of a limit."""
    reports_per_hour: int = 0
    """0: no limit."""
    disturbances: tuple[str, ...] = (
        *("disk full", "sync fails", "read fails", "connections reset", "connections silent"),
    )
    downs_s: tuple[float, ...] = (0.0, 3.0, 100.0)
    """How long a host or a relay is down."""
    steps_s: tuple[int, ...] = (1, 30, 400, 31_536_000)
    """By how much a clock is set."""
    away_s: tuple[int, ...] = (1, 30, 400, 4_000)
    """How long a host is suspended."""
    faults_s: tuple[float, ...] = (0.5, 10.0, 60.0)
    clocks: tuple[str, ...] = ("step", "step back", "suspend", "stop")
    weights: Mapping[str, int] = field(default_factory=dict)
    """The most events of each kind, besides messages."""
    calm_s: float = 3_000.0
    """After the last disturbance all mail is gone in this time."""

    @property
    def has_one_queue(self) -> bool:
        return "postgresql" in self.engines

    def sent_by(self, sender: str) -> str:
        """Return the sender that an upstream sees."""
        return self.rewrite if sender and self.rewrite else sender


FAIR_SHARE = 0.15
MOST: Mapping[str, int] = {"act": 4, "feel": 4, "edit": 0, "clock": 0, "disturb": 1, "crash": 3, "damage": 0}


def drawn(world: World, seed: int, engine: str) -> Script:
    """Return a story of this world; equal seeds give equal stories."""
    rng = random.Random(f"{world.name}/{seed}/{engine}")
    length_s = rng.uniform(5, world.minutes * 60)
    events: list[Event] = []
    for number in range(1, rng.randint(1, world.messages) + 1):
        # Often several messages come at once.
        at_s = events[-1].at_s if events and rng.random() < 0.5 else rng.uniform(0, length_s)
        events.append(_message(world, rng, number, at_s))
    # In some stories only clients act: the time allowed for mail is then the shortest.
    is_fair = rng.random() < FAIR_SHARE
    most = dict.fromkeys(MOST, 0) if is_fair else {**MOST, **world.weights}

    def times(kind: str) -> Sequence[float]:
        return sorted(rng.uniform(0, length_s) for _ in range(rng.randint(0, most[kind])))

    events += [
        Act(at_s, rng.choice(world.acts), rng.choice(world.upstreams), rng.choice((1, 20, 60)))
        for at_s in (times("act") if world.acts else ())
    ]
    for at_s in times("feel") if world.moods else ():
        mood = rng.choice(world.moods)
        events.append(Feel(at_s, rng.choice(world.upstreams), mood, rng.choice(world.lasting_s)))
    events += [Edit(at_s, rng.randrange(len(world.policies))) for at_s in times("edit")]
    for at_s in times("clock"):
        how = rng.choice(world.clocks)
        events.append(SetClock(at_s, how, rng.choice(world.steps_s if "step" in how else world.away_s)))
    for at_s in times("disturb"):
        how = rng.choice(world.disturbances)
        events.append(Disturb(at_s, how, rng.choice(world.faults_s), rng.randint(1, 60)))
    for at_s in times("crash"):
        kind, steps = rng.choice(("kill", "power", "power")), rng.randint(1, 200)
        events.append(Crash(at_s, kind, steps, rng.choice(world.downs_s)))
    for at_s in times("damage")[:1]:
        where, how = rng.choice(("spool", "spool", "history")), rng.choice(("flip", "zero"))
        down_s = rng.choice((0.0, 2.0))
        events.append(Damage(at_s, where, how, rng.randrange(100), rng.random(), down_s))
    return Script(world.name, seed, engine, tuple(sorted(events, key=lambda event: event.at_s)))


def _message(world: World, rng: random.Random, number: int, at_s: float) -> Send:
    kinds = [rng.choice(world.kinds) for _ in range(rng.choice(world.recipients))]
    if whole := next((kind for kind in kinds if kind in ("junk", "slow")), ""):
        kinds = [whole for _ in kinds]  # a refusal at the dot refuses all recipients
    recipients = tuple(
        f"{kind}{number}-{index}@{rng.choice(world.domains)}" for index, kind in enumerate(kinds)
    )
    sender = rng.choice(world.senders).format(n=number)
    lines, is_8bit = rng.choice(world.lines), rng.random() < 0.2
    notify = tuple(rng.choice(world.notifies) for _ in recipients) if world.notifies else ()
    ret = rng.choice(world.rets) if world.notifies else ""
    return Send(at_s, number, sender, recipients, lines, is_8bit, notify, ret, rng.choice(world.subjects))
