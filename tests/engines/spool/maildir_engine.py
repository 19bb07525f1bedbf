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
from tests.engines.spool.engine import OnDisk, content_of
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk


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

    def octet_of(self, disk: Disk, queue_id: QueueId) -> tuple[str, int]:
        path = MaildirLayout(self.root).queued(queue_id)
        return path, (HEADER_BYTES + len(content_of(disk, path))) // 2


MAILDIR = MaildirOnModel("/var/spool")


def on_the_model() -> OnDisk:
    return OnDisk(MAILDIR, ModelDisk())


def on_the_kernel(folder: Path) -> OnDisk:
    return OnDisk(MaildirOnModel(str(folder / "spool")), RealDisk())
