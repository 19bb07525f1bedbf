"""What must hold of a spool and a history that a power cut left, by what those outside knew then.

`judge` starts our recovery on a mounted image, compares what it finds with the observations, and lets
it go on to the end.  It raises Violation with everything that is wrong, and knows nothing
of how an engine keeps messages, but for the folders that must be empty at the end.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from relay.clock import SECOND_NS, SystemClock
from relay.mail.envelope import QueueId
from relay.policy.model import SpoolEngine
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import ENGINES, Engine
from relay.spool.identity import subject_of
from relay.spool.interface import Message, Spool, Status
from relay.throttle.file_history import FileHistory
from relay.throttle.history import HistoryError
from relay.throttle.throttle import Throttle
from tests.engines.history.limits import messages, recipients
from tests.engines.lab.observations import Letter, Observations
from tests.engines.spool.recovering import Recovered, recover
from tests.engines.spool.world import Violation
from tests.fakes.clock import FakeClock

FOLDERS = ("tmp", "new", "cur", "hold", "bounce", "corrupt")
"""Of a spool, that are empty at the end; an engine has them or not."""
MOST = 10_000
DAY_S = 86_400
LETTER_ID_CHARACTERS = 16
"""Reports and warnings have one more."""
_RECEIVED = re.compile(rb"Received: .*\r\n(?:[ \t].*\r\n)*")


@dataclass
class Judgement:
    """What was seen, for the figures."""

    found: int = 0
    """Messages in the queue."""
    ended: int = 0
    """Messages that had their 250 and are gone, every recipient accounted for."""
    repeats: int = 0
    """Recipients that the upstream has, and will get again: taken, and no word of it was durable yet."""
    unacknowledged: int = 0
    """Messages in the queue whose client had no 250 yet."""
    statuses: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Judgement") -> None:
        """Add the figures of another image."""
        self.found += other.found
        self.ended += other.ended
        self.repeats += other.repeats
        self.unacknowledged += other.unacknowledged
        self.statuses += other.statuses


def judge(
    folder: Path, observed: Observations, disk: RealDisk, engine: Engine = ENGINES[SpoolEngine.MAILDIR]
) -> Judgement:
    """Judge what is mounted on a folder by what was known.  Raises Violation."""
    clock = FakeClock(boottime_ns=5 * SECOND_NS, wall_ns=SystemClock().wall_ns())
    corrupt: list[str] = []
    root = str(folder / "spool")
    spool = engine.spool(root, disk, clock, lambda name, why: corrupt.append(f"{name}: {why}"))
    try:
        case = _Case(observed, spool)
        case.recover(corrupt)
        case.look_at_each()
        case.look_for_the_absent()
        case.say()
    finally:
        spool.close()
    _check_history(folder / "history", observed, disk, clock)
    corrupt.clear()
    spool = engine.spool(root, disk, clock, lambda name, why: corrupt.append(f"{name}: {why}"))
    _live_on(spool, case.found)
    remains = [path for name in FOLDERS for path in _files(folder / "spool" / name)]
    inspection = engine.inspect(root, disk)
    if remains or corrupt or inspection.messages:
        raise Violation(f"at the end there is {remains[:5]}, {corrupt[:5]}, {inspection.messages} messages")
    return case.seen


class _Case:
    """One image: what was found, and all that is wrong with it."""

    def __init__(self, observed: Observations, spool: Spool) -> None:
        self.found: dict[QueueId, Message] = {}
        self.seen = Judgement()
        self._observed = observed
        self._spool = spool
        self._wrong: list[str] = []
        self._letters = {letter.recipients[0]: letter for _, letter in observed.offered.values()}
        self._by_sender = {letter.reverse_path: letter for _, letter in observed.offered.values()}
        self._numbers = {queue_id: number for number, (_, queue_id) in observed.accepted.items()}

    def recover(self, corrupt: list[str]) -> None:
        """Start, take everything in, and read all of it."""
        recovery: Recovered = recover(self._spool)
        queued = [entry.queue_id for entry in recovery.entries]
        queued += [entry.queue_id for entry in self._spool.take(MOST)]
        if len(set(queued)) != len(queued):
            self._wrong.append(f"queued twice: {Counter(queued).most_common(3)}")
        if corrupt or recovery.corrupt or recovery.missing_recipients:
            self._wrong.append(f"corrupt: {corrupt}; {recovery.missing_recipients} recipients missing")
        self.found = {queue_id: self._spool.load(queue_id) for queue_id in queued}
        self.seen.found = len(queued)

    def look_at_each(self) -> None:
        """Compare each queued message with what is known of it."""
        letters: Counter[int] = Counter()
        for queue_id, message in self.found.items():
            self.seen.statuses.update(status.name for status in message.statuses)
            if len(queue_id) > LETTER_ID_CHARACTERS:
                self._look_at_report(queue_id, message)
            elif (letter := self._letters.get(message.envelope.recipients[0])) is None:
                self._wrong.append(f"{queue_id}: a message that nobody handed over")
            else:
                letters[letter.number] += 1
                self.seen.unacknowledged += queue_id not in self._numbers
                self._look_at_letter(queue_id, message, letter)
            self._look_at_statuses(queue_id, message)
        self._wrong += [
            f"letter {number} is there {count} times" for number, count in letters.items() if count > 1
        ]

    def look_for_the_absent(self) -> None:
        """Account for each recipient of each message that had its 250 and is not in the queue."""
        for number, (_, queue_id) in self._observed.accepted.items():
            if queue_id in self.found:
                continue
            letter = self._observed.offered[number][1]
            lost = [each for each in letter.recipients if not self._is_accounted_for(queue_id, letter, each)]
            self.seen.ended += not lost
            if lost:
                self._wrong.append(f"{queue_id}: accepted, and lost for {lost}")

    def say(self) -> None:
        """Raise Violation if anything is wrong."""
        if self._wrong:
            raise Violation("; ".join(self._wrong))

    def _look_at_letter(self, queue_id: QueueId, message: Message, letter: Letter) -> None:
        envelope = message.envelope
        if (envelope.reverse_path, envelope.recipients) != (letter.reverse_path, letter.recipients):
            self._wrong.append(f"{queue_id}: another envelope than that of letter {letter.number}")
        if not is_as_handed_over(self._content(queue_id, message), letter, queue_id):
            self._wrong.append(f"{queue_id}: other content than that of letter {letter.number}")
        owed = message.owed_report
        own = {f"{queue_id}r", *([owed.report_id] if owed is not None else [])}
        if any(self._observed.is_told(each, letter.reverse_path) for each in own):
            self._wrong.append(
                f"{queue_id} is back, though the report about it had its end: a second one follows"
            )
        if message.is_held:
            self._wrong.append(f"{queue_id} is held")

    def _look_at_report(self, queue_id: QueueId, message: Message) -> None:
        letter = self._by_sender.get(message.envelope.recipients[0])
        content, subject = self._content(queue_id, message), queue_id[:LETTER_ID_CHARACTERS]
        if letter is None or not message.envelope.is_null or len(message.envelope.recipients) != 1:
            self._wrong.append(f"{queue_id}: a report for {message.envelope.recipients}")
            return
        is_whole = content.endswith(b"--\r\n")
        if f"X-relay-Queue-ID: {subject}\r\n".encode() not in content or not is_whole:
            self._wrong.append(f"{queue_id}: not a whole report about its message")
        for recipient, action in _told_of(content):
            # A warning tells of what only waits too: for its turn, on a machine that is slow.
            is_possible = action == "delayed" or recipient in self._observed.refused
            if recipient not in letter.recipients or not is_possible:
                self._wrong.append(f"{queue_id}: reports {recipient}, which never failed")

    def _look_at_statuses(self, queue_id: QueueId, message: Message) -> None:
        noted = {note.index for note in self._spool.notes(queue_id)}
        for index, (recipient, status) in enumerate(
            zip(message.envelope.recipients, message.statuses, strict=True)
        ):
            is_taken = recipient in self._observed.taken
            match status:
                case Status.TODO:
                    self.seen.repeats += is_taken
                    is_possible = not self._observed.is_told(queue_id, recipient)
                case Status.RELAYED:
                    is_possible = is_taken
                case _:
                    is_possible = index in noted and recipient in self._observed.refused
            if not is_possible:
                told = self._observed.told.get((queue_id, recipient))
                self._wrong.append(f"{queue_id}: {recipient} is {status.name}; told {told}, taken {is_taken}")

    def _is_accounted_for(self, queue_id: str, letter: Letter, recipient: str) -> bool:
        if recipient in self._observed.taken:
            return True
        if recipient not in self._observed.refused:
            return False
        reports = [content for _, content in self._observed.taken.get(letter.reverse_path, [])]
        reports += [
            self._content(own, report) for own, report in self.found.items() if subject_of(own) == queue_id
        ]
        # The report itself may have been refused: then its own account is at its end.
        return letter.reverse_path in self._observed.refused or any(
            (recipient, "failed") in _told_of(each) for each in reports
        )

    def _content(self, queue_id: QueueId, message: Message) -> bytes:
        return message.content if message.content is not None else b"".join(self._spool.content(queue_id))


def is_as_handed_over(content: bytes, letter: Letter, queue_id: str | None = None) -> bool:
    """Whether content is a letter's, byte for byte, but for one `Received:` on top."""
    received = _RECEIVED.match(content)
    return (
        received is not None
        and content[received.end() :] == letter.content
        and (queue_id is None or f" id {queue_id};".encode() in received[0])
    )


def _told_of(content: bytes) -> set[tuple[str, str]]:
    """Return the recipients that a report is about, each with what became of it (RFC 3464, 2.3.3)."""
    fields = rb"\r\nFinal-Recipient: rfc822; (.*)\r\nAction: (.*)\r\n"
    return {(recipient.decode(), action.decode()) for recipient, action in re.findall(fields, content)}


def _check_history(path: Path, observed: Observations, disk: RealDisk, clock: FakeClock) -> None:
    """Each MAIL that the upstream saw is still charged, after a reboot, with its recipients."""
    limits = [messages(10**6, DAY_S), recipients(10**6, DAY_S)]
    throttle = Throttle(FileHistory(path, disk, clock), limits, None, clock)
    try:
        throttle.flush()
        charged = [usage.used for usage in throttle.usage()]
    except HistoryError as error:
        raise Violation(f"the history is lost: {error}") from error
    finally:
        throttle.close()
    seen = [len(observed.mails), len(observed.rcpts)]
    if charged[0] < seen[0] or charged[1] < seen[1]:
        raise Violation(f"messages and recipients charged {charged}, seen by the upstream {seen}")


def _live_on(spool: Spool, found: dict[QueueId, Message]) -> None:
    """Recovering twice is recovering once; when all is relayed the account balances."""
    try:
        queue = recover(spool).entries
        again = {entry.queue_id: spool.load(entry.queue_id) for entry in queue}
        if {key: each.statuses for key, each in again.items()} != {
            key: each.statuses for key, each in found.items()
        }:
            raise Violation(f"recovering twice is not recovering once: {len(found)} then {len(again)}")
        for entry in queue:
            if entry.is_held:
                spool.release(entry.queue_id)
        spool.mark(
            {queue_id: dict.fromkeys(message.left, Status.RELAYED) for queue_id, message in again.items()}
        )
        spool.finish(list(again))
        spool.commit()
        totals = spool.totals()
    finally:
        spool.close()
    ended = totals.relayed + totals.bounced + totals.expired + totals.deleted
    if totals.queued or totals.accepted != ended:
        raise Violation(f"at the end {totals}")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]
