"""Cutting the power of a run at every instant, killing it, and doing so again while it recovers."""

import random
from collections.abc import Callable, Iterator, Sequence

from relay.mail.dsn import DsnRequest, Notify, RecipientRequest
from relay.spool.interface import Status
from tests.engines.spool.engine import OnModel
from tests.engines.spool.maildir_engine import MAILDIR
from tests.engines.spool.oracle import Known, live_on
from tests.engines.spool.scenarios import held_and_released, held_and_released_together, left_held
from tests.engines.spool.world import Letter, Sender, Snapshot, Violation, World, play, prepared
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Model
from tests.fakes.tally import Tally

RELAYED, BOUNCED, EXPIRED, DELETED = Status.RELAYED, Status.BOUNCED, Status.EXPIRED, Status.DELETED
TOLD = Status.SUCCESS
WANTS_ALL = RecipientRequest(Notify.SUCCESS | Notify.FAILURE, "rfc822;list+2Bowner@example.org")
WANTS_NONE = RecipientRequest(Notify.NEVER)
LONG = b"Subject: long\r\n\r\n" + b"0123456789\r\n" * 110

Images = Iterator[tuple[str, ModelDisk]]


def _warned(sender: Sender) -> None:
    for queue_id in sorted(sender.queue):
        sender.warn(queue_id)


def _reports_wait_after_a_crash(sender: Sender) -> None:
    sender.trace.waits_after_a_crash = True


def _the_first_report_waits(sender: Sender) -> None:
    sender.trace.reports_wait = 1


SCENARIOS: dict[str, tuple[tuple[Letter, ...], Callable[[Sender], None] | None]] = {
    "relayed": ((Letter(({0: RELAYED},)),), None),
    "a batch of two": ((Letter(({0: RELAYED}, {1: BOUNCED}), 2), Letter(({0: RELAYED},))), None),
    "bounced": ((Letter(({0: RELAYED, 1: BOUNCED},), 2),), None),
    "bounced, then expired": ((Letter(({0: BOUNCED}, {1: EXPIRED}), 2),), None),
    "bounced one by one": ((Letter(({2: BOUNCED}, {0: BOUNCED}, {1: RELAYED}), 3),), None),
    "bounced one by one, no report after a crash": (
        (Letter(({2: BOUNCED}, {0: BOUNCED}, {1: RELAYED}), 3),),
        _reports_wait_after_a_crash,
    ),
    "three bounced, no report after a crash": (
        (Letter(({1: BOUNCED, 2: EXPIRED, 3: BOUNCED}, {0: BOUNCED}), 4),),
        _reports_wait_after_a_crash,
    ),
    "bounced, the first report waits": (
        (Letter(({2: BOUNCED}, {0: BOUNCED, 1: RELAYED}, {3: EXPIRED}), 4),),
        _the_first_report_waits,
    ),
    "deleted": ((Letter(({0: DELETED, 1: RELAYED},), 2),), None),
    "held and released": ((Letter(({0: RELAYED},)), Letter(({0: BOUNCED},))), held_and_released),
    "held and released together": (
        (Letter(({0: RELAYED},)), Letter(({0: BOUNCED},)), Letter(({0: RELAYED},))),
        held_and_released_together,
    ),
    "bounced while held": ((Letter(({0: BOUNCED},)),), left_held),
    "warned, then bounced": ((Letter(({}, {0: BOUNCED})),), _warned),
    "told of some, no report after a crash": (
        (
            Letter(
                ({1: TOLD, 2: BOUNCED}, {0: TOLD, 3: BOUNCED}),
                4,
                dsn=DsnRequest(recipients=(WANTS_ALL, WANTS_ALL, WANTS_NONE, WANTS_ALL)),
            ),
        ),
        _reports_wait_after_a_crash,
    ),
    "spilled": (
        (Letter(({0: RELAYED}, {1: BOUNCED}, {2: RELAYED, 3: EXPIRED}), 4, content=LONG, spills=2),),
        None,
    ),
}


def run_of(
    name: str, model: Model = Model.ANY_SUBSET, *, from_nothing: bool = False, engine: OnModel = MAILDIR
) -> list[Snapshot]:
    letters, meanwhile = SCENARIOS[name]
    world = World(prepared(model, is_started=not from_nothing, engine=engine), engine=engine)
    world.record()
    play(world, *letters, meanwhile=meanwhile)
    return world.snapshots


def prefixes(snapshot: Snapshot) -> Images:
    """Yield what one order of all that is not synced may leave of an instant."""
    for number, image in enumerate(ModelDisk(snapshot.platter).prefixes()):
        yield f"cut after {snapshot.step!r} keeping the first {number}", image


def cuts(snapshot: Snapshot, rng: random.Random, most: int) -> Images:
    """Yield what the model of the disk may leave of an instant: all of it, or `most` drawn by `rng`."""
    for number, image in enumerate(ModelDisk(snapshot.platter).cuts(rng, most)):
        yield f"cut after {snapshot.step!r} keeping choice {number}", image


def drawn_cuts(rng: random.Random, most: int) -> Callable[[Snapshot], Images]:
    return lambda snapshot: cuts(snapshot, rng, most)


def killed(snapshot: Snapshot) -> Images:
    """Yield what a new process finds when the others were killed and the power stayed."""
    yield f"killed after {snapshot.step!r}", ModelDisk(snapshot.platter).after_kill()


class Judge:
    """Judges crash states: what is on the disk together with what was promised; each different one once.

    Two images are the same state if no process can tell them apart and the trace is the
    same.  In the tally are all of them, and apart those that only a second crash left, while
    the first was recovered from or after.
    """

    def __init__(self, *, engine: OnModel = MAILDIR) -> None:
        self.tally = Tally()
        self.engine = engine
        self._known = Known()

    @property
    def judged(self) -> int:
        return len(self.tally.states)

    def judge(
        self,
        snapshots: Sequence[Snapshot],
        images: Callable[[Snapshot], Images],
        *,
        story: str,
        is_second: bool = False,
    ) -> None:
        """Judge the images of these instants; Violation says how to get there."""
        for snapshot in snapshots:
            for label, image in images(snapshot):
                self.tally.offered += 1
                number = hash(image.fingerprint())
                state = hash((number, snapshot.told))
                if state not in self.tally.states:
                    if not self._known.has(number, snapshot.told):
                        self.go_on(image, snapshot, f"{story}, {label}", number=number)
                    self.tally.states.add(state)
                    if is_second:
                        self.tally.second.add(state)

    def go_on(
        self,
        image: ModelDisk,
        snapshot: Snapshot,
        story: str,
        *,
        record: bool = False,
        number: int | None = None,
    ) -> list[Snapshot]:
        """Judge one image, uncounted; return the instants of recovering from it and ending its messages."""
        if number is None:
            number = hash(image.fingerprint())
        try:
            return live_on(
                image,
                snapshot.trace.copy(),
                record=record,
                known=self._known,
                keys=(number, snapshot.told),
                engine=self.engine,
            )
        except Violation as violation:
            raise Violation(f"{story}: {violation}") from violation
        except Exception as error:
            raise Violation(f"{story}: {error!r}") from error


def cut_on_each_model(
    name: str,
    run: Callable[[str, Model], list[Snapshot]],
    judge: Judge,
    most: int,
    *,
    is_killed: bool = False,
) -> dict[Model, list[Snapshot]]:
    """Cut the power of a run at every instant of it, on every model of a disk; return the instants.

    One judge has them all: what two models allow is one state.  `is_killed`: kill it at each instant, too.
    """
    instants: dict[Model, list[Snapshot]] = {}
    for model in Model:
        rng, story, before = random.Random(name), f"{name} ({model.name})", judge.tally.offered
        instants[model] = run(name, model)
        judge.judge(instants[model], drawn_cuts(rng, most), story=story)
        # Of most instants a cut leaves more than one image.
        assert judge.tally.offered - before > len(instants[model])
        if is_killed:
            judge.judge(instants[model], killed, story=story)
    # And of these, more than one run has instants are different states, each judged.
    assert judge.judged > max(map(len, instants.values()))
    return instants
