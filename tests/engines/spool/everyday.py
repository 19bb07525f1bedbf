"""What goes on in a relay on any day, drawn by chance: mail comes, is settled, held, warned of, cleaned up.

What is to become of each recipient is drawn when its message is handed over, so that a second attempt after
a crash ends as the first one did.
"""

import random

from relay.mail.envelope import QueueId
from relay.spool.identity import subject_of
from relay.spool.interface import Status
from tests.engines.spool.scenarios import MOST_RECIPIENTS, shapes
from tests.engines.spool.world import Letter, Listener, Sender

SHAPES = [shape for recipients in range(1, MOST_RECIPIENTS + 1) for shape in shapes(recipients)]
LINES = (1, 1, 30, 120)
"""Of content."""


class Everyday:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._fates: dict[QueueId, dict[int, Status]] = {}

    def operate(self, sender: Sender, listener: Listener) -> None:
        """Do one thing."""
        rng = self._rng
        queued = sorted(sender.queue)
        some = rng.sample(queued, min(len(queued), rng.randint(1, 3)))
        match rng.choice(("offer", "offer", "settle", "settle", "settle", "hold", "warn", "clean up")):
            case "offer":
                self._offer(listener)
                sender.take()
            case "settle":
                sender.settle({queue_id: self._some_fates(sender, queue_id) for queue_id in some})
            case "hold" if some:
                is_held = [sender.spool.is_held(queue_id) for queue_id in some]
                sender.hold(*some, release=all(is_held))
            case "warn":
                for queue_id in some:
                    if subject_of(queue_id) is None and not sender.spool.load(queue_id).is_warned:
                        sender.warn(queue_id)
            case "clean up":
                sender.spool.clean_up()
                sender.take()

    def _offer(self, listener: Listener) -> None:
        chosen = [self._rng.choice(SHAPES).letter() for _ in range(self._rng.randint(1, 3))]
        letters = [
            Letter((), each.recipients, each.reverse_path, self._content(), 0, each.dsn) for each in chosen
        ]
        for letter, queue_id in zip(chosen, listener.offer(*letters), strict=True):
            if queue_id is not None:
                self._fates[queue_id] = {i: fate for fates in letter.fates for i, fate in fates.items()}

    def _content(self) -> bytes:
        return b"Subject: minutes\r\n\r\n" + b"All agreed.\r\n" * self._rng.choice(LINES)

    def _some_fates(self, sender: Sender, queue_id: QueueId) -> dict[int, Status]:
        left = sender.spool.load(queue_id).left
        fates = self._fates.get(queue_id)
        if fates is None:
            # A report, or a message that was accepted in the instant of the crash.
            fates = dict.fromkeys(left, self._rng.choice((Status.RELAYED, Status.DELETED)))
        return {index: fates[index] for index in left if self._rng.random() < 0.6}
