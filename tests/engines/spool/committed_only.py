"""A maildir that loses at its end what its sender did not commit: the least that an engine may keep.

What listeners accepted stays.  Who forgets to commit, suite or sender, is found out by it.
"""

import dataclasses
from collections.abc import Callable, Generator, Sequence

from relay.mail.draft import Draft
from relay.mail.envelope import Envelope
from relay.queue.sorting import Sorter
from relay.spool.interface import Entry, Intake, Recovery, SpoolFull
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import Layout, prepare
from tests.engines.spool.maildir_engine import MaildirEngine, MaildirOnModel
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Platter


class CommittedOnly(MaildirSpool):
    def __init__(
        self, root: str, disk: ModelDisk, clock: FakeClock, on_corrupt: Callable[[str, str], None]
    ) -> None:
        super().__init__(root, disk, clock, on_corrupt)
        self._platter = disk.platter
        self.durable = disk.platter.copy()
        """What a crash leaves."""
        self.commits = 0
        self.commits_without_room = 0
        """So many of the next ones find no room."""

    def commit(self) -> None:
        if self.commits_without_room:
            self.commits_without_room -= 1
            raise SpoolFull("there is no room for the group")
        super().commit()
        self.commits += 1
        self.durable = self._platter.copy()

    def recover(
        self, sorter: Sorter | None = None, on_step: Callable[[], None] = lambda: None
    ) -> Generator[list[Entry], None, Recovery]:
        recovery = yield from super().recover(sorter, on_step)
        self.durable = self._platter.copy()
        return recovery

    def close(self) -> None:
        super().close()
        for field in dataclasses.fields(Platter):
            setattr(self._platter, field.name, getattr(self.durable, field.name))


class _KeptIntake(MaildirIntake):
    """One whose messages are durable whatever its sender commits."""

    def __init__(self, engine: "CommittedOnlyEngine", disk: ModelDisk) -> None:
        super().__init__(engine.root, disk, engine.clock)
        self._engine = engine
        self._view = disk

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[OSError | None]:
        answers = super().accept(drafts)
        for (draft, _), error in zip(drafts, answers, strict=True):
            if error is None and self._engine.spool is not None:
                path = Layout(self._engine.root).accepted(draft.queue_id)
                ModelDisk(self._engine.spool.durable).plant(path, self._view.peek(path))
        return answers


class CommittedOnlyEngine(MaildirEngine):
    def __init__(self) -> None:
        self.model = ModelDisk()
        super().__init__("/var/spool", self.model)
        self.spool: CommittedOnly | None = None

    def start(self) -> CommittedOnly:
        view = self.model.another()
        self.spool = CommittedOnly(
            self.root, view, self.clock, lambda name, why: self.told.append((name, why))
        )
        return self.spool

    def intake(self) -> Intake:
        view = self.model.another()
        prepare(self.root, view)
        return _KeptIntake(self, view)


class CommittedOnlyOnModel(MaildirOnModel):
    """See tests.engines.spool.engine.OnModel."""

    def sender(
        self, disk: ModelDisk, clock: FakeClock, on_corrupt: Callable[[str, str], None]
    ) -> CommittedOnly:
        return CommittedOnly(self.root, disk, clock, on_corrupt)
