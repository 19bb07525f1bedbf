"""A spool whose disk refuses some calls each time, over many starts, and what chance makes of it.

The suites of single faults (tests.unit.spool.test_faults) let a call fail, and judge the next start.  Here a
call of one kind about one path is refused each time until some later start: a segment that cannot be
removed, a lock that cannot be read, notes that cannot be opened.  Meanwhile mail comes, ends, is held and
copied forward.  Senders die and start beside listeners that live on, so that one start cannot hear a listener
and a later one does.  A start or a sender that lacks something goes on once that is there.

Judged are every message that a sender comes to know, at once; its whole queue and account once nothing is
refused any more, in the same process; and the next start, by tests.unit.spool.oracle.
"""

import contextlib
import errno
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

from relay.mail.envelope import QueueId
from relay.spool.interface import Recovery, SpoolFault, SpoolFull
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.fault import READS, Standing
from tests.fakes.platter import Model
from tests.fakes.power import survivors
from tests.unit.spool import oracle
from tests.unit.spool.engine import OnModel
from tests.unit.spool.everyday import Everyday
from tests.unit.spool.plays import prepared
from tests.unit.spool.world import Listener, Sender, Violation, World

STARTS = 8
LINES = (1, 1500)
"""Of content: long enough that a log which is mostly dead is so by its mail."""
OPERATIONS = 24
LACKS = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.EINTR)
"""What says nothing of the disk: it may be there the next time."""
ERRORS = (*LACKS, errno.EIO, errno.EIO)
OF_A_FILE = (
    *("unlink", "unlink", "unlink", "read", "read", "open", "open"),
    *("write", "sync", "sync_content", "truncate", "rename", "link", "open_new", "set_modified"),
)
OF_A_FOLDER = ("names", "sync_directory")
WAYS = ("the sender dies", "the sender dies", "the sender dies", "killed", "cut")
"""How a sender ends: alone, with the listeners, or with the power."""
LIKELY = {
    "log": (("read", ".lock", (errno.EIO,)), ("unlink", ".0000000", ERRORS)),
    "new": (("unlink", "/new/", LACKS), ("rename", "/new/", LACKS)),
    "bounce": (("unlink", "/bounce/", ERRORS), ("read", "/bounce/", ERRORS)),
    "cur": (("read", "/cur/", (errno.EIO,)),),
}
"""By folder of a spool, what was found to matter: holes were made of two or three of them, in some order."""


class Wary(Sender):
    """A sender that looks at each message as soon as it knows of it."""

    def take(self) -> list[QueueId]:
        before = set(self.queue)
        taken = super().take()
        self.meet(taken, before)
        return taken

    def meet(self, queue_ids: Iterable[QueueId], before: set[QueueId]) -> None:
        """Judge messages that came into the queue, in which were those of `before`."""
        for queue_id in queue_ids:
            if queue_id in before:
                raise Violation(f"{queue_id} is queued twice")
            if queue_id not in self.trace.offered:
                raise Violation(f"{queue_id} is queued, and nobody sent it")
            before.add(queue_id)
            self.queue.add(queue_id)
            # What is on the disk counts now, whatever an earlier sender called.
            self.trace.called = {key: s for key, s in self.trace.called.items() if key[0] != queue_id}
            with contextlib.suppress(OSError, SpoolFull, SpoolFault):
                message = self.spool.load(queue_id)
                oracle.check_present(self.trace, message, self, are_notes_given=self._are_notes_given)

    def can_read(self, queue_id: QueueId) -> bool:
        try:
            self.spool.load(queue_id)
            self.spool.notes(queue_id)
        except (OSError, SpoolFull, SpoolFault):
            return False
        return True

    @property
    def _are_notes_given(self) -> bool:
        """Notes that the disk does not give must not hold up a report, and count as none."""
        fault = self.disk.fault
        kinds = {each.kind for each in self.disk.standing if each.error not in LACKS}
        if fault is not None and fault.error not in LACKS:
            kinds |= fault.kinds or set()
        return kinds.isdisjoint(READS)


class StandingFaults:
    """One spool; what those outside know is in the trace."""

    def __init__(self, seed: str, engine: OnModel) -> None:
        self._rng = random.Random(seed)
        self._engine = engine
        engine.vary(self._rng)
        self._model = self._rng.choice(list(Model))
        self._world = World(prepared(self._model, engine=engine), engine=engine)
        self._everyday = Everyday(self._rng, lines=LINES, staying=0.6, many=8)
        there = self._world.sender_disk.names(engine.root)
        likely = [each for folder, some in LIKELY.items() if folder in there for each in some]
        self._likely = self._rng.sample(likely, 2)
        """What comes again and again in this walk, so that they meet."""
        self._way = self._rng.choice(sorted(set(WAYS)))
        self._listeners: list[Listener] = []
        self._seeds = itertools.count(1)
        self.lives = 0
        """Of senders, from a start to its end."""
        self.refused = 0
        """Senders of which a call was refused."""
        self.whole = 0
        """Senders that went on when nothing was refused any more, and were judged as a whole."""
        self.story: list[str] = [self._model.name]

    def run(self) -> None:
        for _ in range(STARTS):
            self._live(self._refused())
            self._end()
        if self._rng.random() < 0.5:
            self._live(self._refused(), drains=True)
        self._start_anew(self._world.sender_disk.after_kill())
        self._world.sender_disk.standing = frozenset()
        self._say("a clean start")
        sender = self._world.sender()
        oracle.check_start(self._world.sender_disk, sender, sender.recover(), self._engine)
        sender.end_what_is_done()
        sender.report_what_is_owed(sorted(sender.queue))
        sender.commit()
        sender.warn_after_a_start()
        sender.drain()
        oracle.check_end(self._world.sender_disk, sender, self._engine)
        oracle.check_told(self._world.trace)

    def _say(self, what: object) -> None:
        self.story.append(str(what))

    def _refused(self) -> frozenset[Standing]:
        """Return what the next sender's disk refuses: some of what it did, and something new."""
        rng = self._rng
        kept = [each for each in self._in_order() if rng.random() < 0.7]
        return frozenset(kept + [self._drawn() for _ in range(rng.choice((0, 1, 1, 1, 2)))])

    def _in_order(self) -> list[Standing]:
        return sorted(self._world.sender_disk.standing, key=str)

    def _drawn(self) -> Standing:
        """Return calls of some kind about some path that is there, or about all of its sort."""
        rng = self._rng
        if (likely := self._some_likely()) is not None and rng.random() < 0.9:
            return likely
        folders = _files(self._world.sender_disk, self._engine.root)
        if rng.random() < 0.15:
            return Standing(rng.choice(OF_A_FOLDER), rng.choice(sorted(folders)), rng.choice(ERRORS))
        return Standing(rng.choice(OF_A_FILE), rng.choice(_paths(folders)), rng.choice(ERRORS))

    def _some_likely(self) -> Standing | None:
        """Return one of what is likely in this walk, about a path, all that begins as it does, or all."""
        rng, paths = self._rng, _paths(_files(self._world.sender_disk, self._engine.root))
        likely = [each for each in self._likely if any(each[1] in path for path in paths)]
        if not likely:
            return None
        kind, part, errors = rng.choice(likely)
        # Of one stream of a log, those segments too that it has yet to begin.
        start = rng.choice(sorted({path.partition(".")[0] for path in paths if part in path}))
        path = rng.choice([path for path in paths if part in path and path.startswith(start)])
        path = rng.choice((path, start, part) if kind == "unlink" else (path, part))
        return Standing(kind, path, rng.choice(errors))

    def _live(self, refused: frozenset[Standing], *, drains: bool = False) -> None:
        """Start a sender, which goes on until chance or the disk ends it."""
        disk, rng = self._world.sender_disk, self._rng
        disk.standing = refused
        self._say(sorted(map(str, refused)))
        strikes_at = rng.randint(0, OPERATIONS)
        if rng.random() < 0.3:
            self._strike(disk)
        try:
            sender = Wary(disk, self._world.clock, self._world.trace, self._engine)
            sender.on_full = self._have if rng.random() < 0.7 else None
            self._recover(sender)
            for number in range(rng.randint(1, OPERATIONS)):
                if number == strikes_at:
                    disk.standing |= {self._drawn()}
                    self._say(f"refused from now on: {sorted(map(str, disk.standing))}")
                self._operate(sender)
            if drains or rng.random() < 0.35:
                self._refuse_nothing_more(sender, drains=drains)
            if rng.random() < 0.3:
                self._say("closed")
                sender.spool.close()
        except (SpoolFault, SpoolFull, OSError) as error:
            # A relay whose disk fails dies; a restart reads the disk.
            if not disk.has_failed:
                raise
            self._say(repr(error))
        self.lives += 1
        self.refused += disk.has_failed

    def _strike(self, disk: ModelDisk) -> None:
        """Let a call fail: once, until what it lacks is there, or each time about that path."""
        rng = self._rng
        if (likely := self._some_likely()) is not None and rng.random() < 0.7:
            fault = Fault(rng.randint(1, 3), likely.error, kinds=frozenset({likely.kind}), path=likely.path)
        elif rng.random() < 0.5:
            kind = frozenset({rng.choice(OF_A_FILE)})
            fault = Fault(rng.randint(1, 6), rng.choice(LACKS), kinds=kind)
        else:
            nth = rng.randint(1, rng.choice((12, 40, 120)))
            fault = Fault(nth, rng.choice(LACKS), kinds=rng.choice((None, READS)))
        how = rng.choice(("once", "forever", "forever", "forever", "stands"))
        fault.forever, fault.stands = how == "forever", how == "stands"
        disk.fail(fault)
        self._say(fault)

    def _have(self) -> None:
        """Have what was lacking.  Raises OSError where nothing was."""
        disk = self._world.sender_disk
        failing = frozenset(each for each in disk.standing if each.error not in LACKS)
        if disk.fault is None and failing == disk.standing:
            raise OSError(errno.EIO, "nothing is lacking, and yet it does not go on")
        self._say("nothing is lacking")
        disk.standing = failing
        disk.heal()

    def _recover(self, sender: Wary) -> None:
        """Read all there is; where the start lacks something it goes on once that is there."""
        walk = sender.spool.recover()
        met: set[QueueId] = set()
        found: Recovery | None = None
        while found is None:
            try:
                batch = next(walk)
            except StopIteration as end:
                found = end.value
                continue
            sender.meet([entry.queue_id for entry in batch], met)
            if not batch:
                self._have()
        if found.missing_recipients or found.set_aside or found.removed_recipients:
            raise Violation(f"{found}")
        sender.take()
        readable = [queue_id for queue_id in sorted(sender.queue) if sender.can_read(queue_id)]
        sender.end_what_is_done(readable)
        sender.report_what_is_owed([queue_id for queue_id in readable if queue_id in sender.queue])
        sender.commit()

    def _operate(self, sender: Wary) -> None:
        rng, disk = self._rng, self._world.sender_disk
        if disk.standing and rng.random() < 0.1:
            gone = rng.choice(self._in_order())
            disk.standing -= {gone}
            self._say(f"no more {gone}")
        if rng.random() < 0.15:
            self._everyday.begin()
        try:
            self._everyday.operate(sender, self._listener(), sender.can_read)
        except SpoolFull:
            # A settlement that it stopped is called again by the sender, or by the next one.
            if sender.on_full is None or not disk.has_failed:
                raise
            self._have()

    def _listener(self) -> Listener:
        """Return one that lives, or another one."""
        if len(self._listeners) < 2:
            self._listeners.append(self._world.another_listener(next(self._seeds)))
        return self._rng.choice(self._listeners)

    def _refuse_nothing_more(self, sender: Wary, *, drains: bool) -> None:
        """Let the sender go on without faults, and judge all that it knows."""
        disk = self._world.sender_disk
        self._say("nothing is refused")
        disk.standing = frozenset()
        disk.heal()
        sender.spool.clean_up()
        while sender.take():
            pass
        sender.commit()
        if sender.spool.corrupt_count():
            return  # what the disk did not give is read by the next start
        # What could not be counted when it was taken is counted when it ends.
        counts = sender.spool.totals().imbalance == 0
        oracle.check_whole(sender.trace, sender, counts=counts)
        self.whole += 1
        if drains:
            sender.end_what_is_done()
            sender.report_what_is_owed(sorted(sender.queue))
            sender.commit()
            sender.drain()
            oracle.check_whole(sender.trace, sender)

    def _end(self) -> None:
        """End the sender, alone or with the listeners, or cut the power."""
        disk, rng = self._world.sender_disk, self._rng
        way = self._way if rng.random() < 0.5 else rng.choice(WAYS)
        self._say(way)
        match way:
            case "the sender dies":
                disk.die()
                self._start_anew(disk.another())
            case "killed":
                self._start_anew(disk.after_kill())
            case _:
                kept = list(itertools.islice(survivors(self._model, disk.platter.pending, rng, 12), 12))
                self._start_anew(ModelDisk(disk.platter.after_cut(rng.choice(kept))))

    def _start_anew(self, disk: ModelDisk) -> None:
        disk.standing = self._world.sender_disk.standing
        if disk.platter is not self._world.sender_disk.platter:
            self._listeners.clear()
            disk.standing = disk.standing if self._rng.random() < 0.8 else frozenset()
        self._world = World(disk, self._world.trace, self._engine)
        self._world.trace.crash()


def _files(disk: ModelDisk, root: str) -> dict[str, list[str]]:
    """Return the folders below and at a root, and the names of the files in each."""
    view, found = ModelDisk(disk.platter), dict[str, list[str]]()
    ahead = [root]
    while ahead:
        folder = ahead.pop()
        paths = [f"{folder}/{name}" for name in sorted(view.names(folder))]
        below = [path for path in paths if view.inode(path) in disk.platter.names]
        ahead += below
        found[folder] = [path.rpartition("/")[2] for path in paths if path not in below]
    return found


def _paths(folders: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{folder}/{name}" for folder, names in sorted(folders.items()) for name in names]
