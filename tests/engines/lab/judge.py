"""What must hold of a spool and a history that a power cut left, by what those outside knew then.

`judge` starts an owner on a mounted image, compares what it claims with the observations, and goes on
to the end.  It raises Violation with everything that is wrong, and knows nothing of how an engine keeps
messages, but for the folders that must be empty at the end.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from relay.clock import SECOND_NS, SystemClock
from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import Engine
from relay.spool.identity import report_id
from relay.spool.interface import Message, Report, Settlement, Spool, SpoolError, Status
from relay.throttle.file_history import FileHistory
from relay.throttle.history import HistoryError
from relay.throttle.throttle import Throttle
from tests.engines.history.limits import messages, recipients
from tests.engines.lab.observations import Letter, Observations
from tests.engines.spool.subjects import subject_of
from tests.engines.spool.world import Violation
from tests.fakes.clock import FakeClock

FOLDERS = ("tmp", "new", "cur", "hold", "notes", "long", "corrupt")
"""Of a spool, that are empty at the end; an engine has them or not."""
PAGE = 50
DAY_S = 86_400
_RECEIVED = re.compile(rb"Received: .*\r\n(?:[ \t].*\r\n)*")


def judge(folder: Path, observed: Observations, disk: RealDisk, engine: Engine) -> Counter[str]:
    """Judge what is mounted on a folder by what was known; return what was seen.  Raises Violation.

    Seen are messages: `found` in the queue, `unacknowledged`, whose client had no 250 yet, and `ended`, with
    every recipient accounted for; and recipients: by status, and `repeats`, whom the upstream has already.
    """
    clock = FakeClock(boottime_ns=5 * SECOND_NS, wall_ns=SystemClock().wall_ns())
    corrupt: list[str] = []

    def start() -> closing[Spool]:
        root = str(folder / "spool")
        return closing(engine.spool(root, disk, clock, lambda name, why: corrupt.append(f"{name}: {why}")))

    with start() as spool:
        found = _claimed(spool)
        case = _Case(observed, spool, found)
        if corrupt or spool.look().corrupt:
            case.wrong.append(f"corrupt: {corrupt}")
        case.look_at_each()
        case.look_for_the_absent()
    if case.wrong:
        raise Violation("; ".join(case.wrong))
    _check_history(folder / "history", observed, disk, clock)
    with start() as spool:
        if (again := _claimed(spool)) != found:
            raise Violation(f"starting twice is not starting once: {found} then {again}")
        _live_on(spool, again)
    with start() as spool:
        left = [message.queue_id for message in _claimed(spool)]
        remains = [
            path for name in FOLDERS for path in (folder / "spool" / name).rglob("*") if not path.is_dir()
        ]
        if left or remains or corrupt or spool.look().corrupt:
            raise Violation(f"at the end there is {left[:5]}, {remains[:5]}, {corrupt[:5]}")
    return case.seen


class _Case:
    """One image: what was found, and all that is wrong with it."""

    def __init__(self, observed: Observations, spool: Spool, found: Sequence[Message]) -> None:
        self.seen = Counter(found=len(found))
        self.wrong: list[str] = []
        self._observed = observed
        self._found = {message.queue_id: message for message in found}
        self._contents = {message.queue_id: _content(spool, message) for message in found}
        self._letters = {letter.recipients[0]: letter for letter in observed.offered.values()}
        self._by_sender = {letter.reverse_path: letter for letter in observed.offered.values()}
        ids = [message.queue_id for message in found]
        if ids != sorted(self._found):
            self.wrong.append(f"claimed twice, or not by age: {ids}")

    def look_at_each(self) -> None:
        acknowledged = set(self._observed.accepted.values())
        letters: Counter[int] = Counter()
        for queue_id, message in self._found.items():
            self.seen.update(status.name for status in message.statuses)
            if (subject := subject_of(queue_id)) is not None:
                self._look_at_report(message, subject)
            elif (letter := self._letters.get(message.envelope.recipients[0])) is None:
                self.wrong.append(f"{queue_id}: a message that nobody handed over")
            else:
                letters[letter.number] += 1
                self.seen["unacknowledged"] += queue_id not in acknowledged
                self._look_at_letter(message, letter)
            self._look_at_statuses(message)
        self.wrong += [
            f"letter {number} is there {count} times" for number, count in letters.items() if count > 1
        ]

    def look_for_the_absent(self) -> None:
        """Account for each recipient of each message that had its 250 and is not in the queue."""
        for number, queue_id in self._observed.accepted.items():
            if queue_id in self._found:
                continue
            letter = self._observed.offered[number]
            lost = [each for each in letter.recipients if not self._is_accounted_for(queue_id, letter, each)]
            self.seen["ended"] += not lost
            if lost:
                self.wrong.append(f"{queue_id}: accepted, and lost for {lost}")

    def _look_at_letter(self, message: Message, letter: Letter) -> None:
        queue_id, envelope, owed = message.queue_id, message.envelope, message.owed_report
        if (envelope.reverse_path, envelope.recipients) != (letter.reverse_path, letter.recipients):
            self.wrong.append(f"{queue_id}: another envelope than that of letter {letter.number}")
        if not is_as_handed_over(self._contents[queue_id], letter, queue_id):
            self.wrong.append(f"{queue_id}: other content than that of letter {letter.number}")
        to_come = {owed.report_id} if owed is not None else set()
        to_come |= {report_id(queue_id)} if message.left else set()
        if any(each in self._found or (each, letter.reverse_path) in self._observed.told for each in to_come):
            self.wrong.append(f"{queue_id}: a report is there, or had its end, and a second one follows")
        if message.is_held:
            self.wrong.append(f"{queue_id} is held")

    def _look_at_report(self, message: Message, subject: QueueId) -> None:
        queue_id, envelope, content = message.queue_id, message.envelope, self._contents[message.queue_id]
        letter = self._by_sender.get(envelope.recipients[0])
        if letter is None or not envelope.is_null or len(envelope.recipients) != 1:
            self.wrong.append(f"{queue_id}: a report for {envelope.recipients}")
            return
        if f"X-relay-Queue-ID: {subject}\r\n".encode() not in content or not content.endswith(b"--\r\n"):
            self.wrong.append(f"{queue_id}: not a whole report about its message")
        for recipient, action in _told_of(content):
            # A warning tells of what only waits too: for its turn, on a machine that is slow.
            is_possible = action == "delayed" or recipient in self._observed.refused
            if recipient not in letter.recipients or not is_possible:
                self.wrong.append(f"{queue_id}: reports {recipient}, which never failed")

    def _look_at_statuses(self, message: Message) -> None:
        noted, owed = {note.index for note in message.notes}, message.owed_report
        for index, (recipient, status) in enumerate(
            zip(message.envelope.recipients, message.statuses, strict=True)
        ):
            is_taken = recipient in self._observed.taken
            is_told = (message.queue_id, recipient) in self._observed.told
            match status:
                case Status.TODO:
                    self.seen["repeats"] += is_taken
                    is_possible = not is_told
                case Status.RELAYED:
                    is_possible = is_taken
                case _:
                    is_explained = owed is None or index not in owed.indices or index in noted
                    is_possible = is_explained and recipient in self._observed.refused
            if not is_possible:
                self.wrong.append(
                    f"{message.queue_id}: {recipient} is {status.name}; told {is_told}, taken {is_taken}"
                )

    def _is_accounted_for(self, queue_id: str, letter: Letter, recipient: str) -> bool:
        if recipient in self._observed.taken:
            return True
        if recipient not in self._observed.refused:
            return False
        reports = [*self._observed.taken.get(letter.reverse_path, [])]
        reports += [content for own, content in self._contents.items() if subject_of(own) == queue_id]
        # The report itself may have been refused: then its own account is at its end.
        return letter.reverse_path in self._observed.refused or any(
            (recipient, "failed") in _told_of(each) for each in reports
        )


def is_as_handed_over(content: bytes, letter: Letter, queue_id: str | None = None) -> bool:
    """Whether content is a letter's, byte for byte, but for one `Received:` on top."""
    received = _RECEIVED.match(content)
    return (
        received is not None
        and content[received.end() :] == letter.content
        and (queue_id is None or f" id {queue_id};".encode() in received[0])
    )


def _claimed(spool: Spool) -> list[Message]:
    found: list[Message] = []
    while page := spool.claim(PAGE):
        found += page
    return found


def _content(spool: Spool, message: Message) -> bytes:
    return message.content if message.content is not None else b"".join(spool.content(message.queue_id))


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
    if charged[0] < observed.mails or charged[1] < observed.rcpts:
        raise Violation(f"charged {charged}, and the upstream saw {observed.mails}, {observed.rcpts}")


def _live_on(spool: Spool, found: Sequence[Message]) -> None:
    """Relay all that is left, and end it with the reports that are owed; they are claimed and end too."""
    while found:
        failures = spool.settle([_end_of(message) for message in found])
        if failed := [failure for failure in failures if isinstance(failure, SpoolError)]:
            raise Violation(f"not settled: {failed}")
        found = _claimed(spool)


def _end_of(message: Message) -> Settlement:
    settlement = Settlement(message.queue_id, message.envelope, dict.fromkeys(message.left, Status.RELAYED))
    settlement.ends = True
    if (owed := message.after(settlement.marks).owed_report) is not None:
        to = replace(message.envelope, reverse_path="", recipients=(message.envelope.reverse_path,))
        settlement.report = Report(owed.report_id, to, b"Subject: report\r\n")
        settlement.told = owed.indices
    return settlement
