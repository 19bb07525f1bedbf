"""The maildir engine for the suite, on the model disk or in a real folder."""

import random
from collections.abc import Callable
from pathlib import Path

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, RealDisk
from relay.spool.interface import Intake
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import MaildirLayout, prepare
from relay.spool.message.message_file import HEADER_BYTES
from tests.engines.spool.engine import OneSpool
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk


class MaildirEngine(OneSpool):
    def __init__(self, root: str, disk: Disk) -> None:
        super().__init__(root, disk)
        self.layout = MaildirLayout(root)

    def start(self) -> MaildirSpool:
        return MaildirSpool(self.root, self.view(), self.clock, self.tell)

    def intake(self) -> Intake:
        view = self.view()
        prepare(self.root, view)
        return MaildirIntake(self.root, view, self.clock, self.chance())

    def damage(self, queue_id: QueueId) -> None:
        path = self.layout.queued(queue_id)
        self.flip(path, HEADER_BYTES + (len(self.content_of(path)) - HEADER_BYTES) // 2)


class MaildirOnModel:
    """See tests.engines.spool.engine.OnModel."""

    def __init__(self, root: str) -> None:
        self.root = root

    def spool(self, disk: Disk, clock: FakeClock, on_corrupt: Callable[[str, str], None]) -> MaildirSpool:
        return MaildirSpool(self.root, disk, clock, on_corrupt)

    def listener(self, disk: Disk, clock: FakeClock, chance: Callable[[int], bytes]) -> Intake:
        return MaildirIntake(self.root, disk, clock, chance)

    def prepare(self, disk: Disk) -> None:
        prepare(self.root, disk)

    def vary(self, rng: random.Random) -> None:
        """Draw nothing: a maildir has no free parameters."""

    def drafts(self, disk: Disk) -> list[str]:
        return disk.names(f"{self.root}/tmp")

    def remains(self, disk: Disk) -> list[str]:
        folders = [f"{self.root}/{name}" for name in ("tmp", "new", "hold", "corrupt", "notes")]
        folders += [f"{self.root}/cur/{name}" for name in disk.names(f"{self.root}/cur")]
        return [f"{folder}/{name}" for folder in folders for name in disk.names(folder)]


MAILDIR = MaildirOnModel("/var/spool")


def on_the_model() -> MaildirEngine:
    return MaildirEngine("/var/spool", ModelDisk())


def on_the_kernel(folder: Path) -> MaildirEngine:
    return MaildirEngine(str(folder / "spool"), RealDisk())
