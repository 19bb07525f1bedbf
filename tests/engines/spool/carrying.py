"""Spools with messages in every state, and all that is known of them, for what moves them."""

from dataclasses import dataclass

from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.dsn import DsnRequest, Notify, RecipientRequest, asked_of
from relay.mail.envelope import Envelope, QueueId
from relay.spool.identity import report_id
from relay.spool.interface import DEFERRED, INLINE_BYTES, Intake, Message, Note, Spool, Status, Totals
from tests.engines.spool.engine import accept
from tests.engines.spool.recovering import recover
from tests.fakes.clock import START_WALL_NS

REPORT = Envelope("", ("list@example.org",), START_WALL_NS, "local", "", "LOCAL")


@dataclass(frozen=True, slots=True)
class Story:
    """What is to become of one message before it is moved."""

    statuses: tuple[Status, ...]
    size_bytes: int = 40
    reverse_path: str = "list@example.org"
    deferrals: int = 0
    is_held: bool = False
    is_warned: bool = False
    is_reported: bool = False
    """Also its report ended, while it has recipients left."""
    postponed_s: int = 0
    is_finished: bool = False
    wants: Notify | None = None

    @property
    def envelope(self) -> Envelope:
        asked = asked_of([RecipientRequest(self.wants)] * len(self.statuses))
        addresses = tuple(f"r{number}@example.com" for number in range(len(self.statuses)))
        return Envelope(
            self.reverse_path,
            addresses,
            START_WALL_NS,
            "local[127.0.0.1]",
            "mail",
            "ESMTP",
            user="mjd",
            dsn=DsnRequest(recipients=asked),
        )

    @property
    def content(self) -> bytes:
        return (b"Message-ID: <1@x>\r\n\r\n" + b".\xe9\r\n" * self.size_bytes)[: self.size_bytes]


@dataclass(frozen=True, slots=True)
class Kept:
    """All that a spool tells of a message."""

    message: Message
    notes: tuple[tuple[Note, int], ...]
    content: bytes


@dataclass(frozen=True, slots=True)
class State:
    """All that a spool tells."""

    messages: dict[QueueId, Kept]
    totals: Totals
    gone: frozenset[QueueId]
    """Reports that are not published again."""


def play(spool: Spool, intake: Intake, stories: list[Story]) -> None:
    """Bring about what stories say, and commit it."""
    ids = [accept(intake, story.envelope, story.content, chunk=100_000) for story in stories]
    spool.take(100)
    for queue_id, story in zip(ids, stories, strict=True):
        _play(spool, queue_id, story)
    spool.commit()


def _play(spool: Spool, queue_id: QueueId, story: Story) -> None:
    for number in range(story.deferrals):
        note = Note(0, "4.2.0", DEFERRED, f"450 later {number}", "isp", START_WALL_NS + number)
        spool.keep_replies(queue_id, [note])
    marks = {index: status for index, status in enumerate(story.statuses) if status is not Status.TODO}
    told = [
        Note(index, "5.1.1", "bounced", "550 no", "isp", START_WALL_NS)
        for index, status in marks.items()
        if status.is_reported
    ]
    if told:
        spool.note({queue_id: told})
    if marks:
        spool.mark({queue_id: marks})
    if story.is_warned:
        spool.mark_warned(queue_id)
    owed = spool.owed_report(queue_id)
    if story.is_reported and owed is not None:
        spool.publish_report(owed.report_id, REPORT, b"Subject: sorry\r\n\r\n")
        spool.mark_reported(queue_id, owed.indices)
        spool.commit()
        spool.take(100)
        spool.mark({owed.report_id: {0: Status.RELAYED}})
        spool.finish([owed.report_id])
    if story.postponed_s:
        spool.postpone(queue_id, START_WALL_NS + story.postponed_s * SECOND_NS)
    if story.is_held:
        spool.hold(queue_id)
    if story.is_finished and Status.TODO not in story.statuses:
        spool.finish([queue_id])


def state_of(spool: Spool) -> State:
    """Read all of a spool that recovered just now."""
    entries = recover(spool).entries
    messages = {entry.queue_id: spool.load(entry.queue_id) for entry in entries}
    kept = {
        queue_id: Kept(
            message._replace(content=None),
            tuple((note, note.attempts) for note in spool.notes(queue_id)),
            b"".join(spool.content(queue_id)),
        )
        for queue_id, message in messages.items()
    }
    reports = {report_id(queue_id, number) for queue_id in messages for number in (None, *range(4))}
    gone = frozenset(spool.account().reports_gone & reports)
    return State(kept, spool.totals(), gone)


STORIES = [
    Story((Status.TODO,)),
    Story((Status.RELAYED, Status.TODO, Status.TODO), deferrals=2, postponed_s=600),
    Story((Status.BOUNCED, Status.TODO), is_reported=True, is_warned=True),
    Story((Status.BOUNCED, Status.EXPIRED, Status.TODO), deferrals=3),
    Story((Status.TODO, Status.TODO), is_held=True, size_bytes=INLINE_BYTES + 1),
    Story((Status.RELAYED,), is_finished=True),
    Story((Status.BOUNCED, Status.DELETED), is_finished=True),
    Story((Status.SUCCESS, Status.BOUNCED), wants=Notify.SUCCESS, size_bytes=0),
]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    statuses = draw(st.lists(st.sampled_from(Status), min_size=1, max_size=4))
    return Story(
        tuple(statuses),
        size_bytes=draw(st.sampled_from([0, 1, 40, 40_000, INLINE_BYTES, INLINE_BYTES + 1])),
        reverse_path=draw(st.sampled_from(["", "list@example.org", "jörg@example.org"])),
        deferrals=draw(st.integers(0, 3)),
        is_held=draw(st.booleans()),
        is_warned=draw(st.booleans()),
        is_reported=draw(st.booleans()),
        postponed_s=draw(st.sampled_from([0, 600])),
        is_finished=draw(st.booleans()),
        wants=draw(st.sampled_from([None, Notify.SUCCESS, Notify.NEVER, Notify.SUCCESS | Notify.FAILURE])),
    )
