"""Clean-up removes what is proven dead and nothing else, whatever the clock says."""

import errno

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.spool.maildir.intake import MaildirIntake
from tests.engines.spool.engine import CONTENT, ENVELOPE, again, note, recovered, taken
from tests.engines.spool.maildir_engine import MaildirEngine, on_the_model
from tests.fakes.disk import ModelDisk

TEN_YEARS_NS = 10 * 365 * 86_400 * SECOND_NS


def listener(engine: MaildirEngine) -> tuple[MaildirIntake, ModelDisk]:
    """Return a listener and the view of the disk that it writes through."""
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    return MaildirIntake(engine.root, view, engine.clock, engine.chance()), view


@pytest.mark.parametrize("step_ns", [TEN_YEARS_NS, -TEN_YEARS_NS])
def test_a_draft_goes_once_its_writer_is_dead_and_never_before(step_ns: int) -> None:
    engine = on_the_model()
    spool = recovered(engine)
    (living, its_view), (dead, dead_view) = listener(engine), listener(engine)
    removed: list[int] = []

    def meanwhile(_step: str) -> None:
        engine.clock.step_wall(step_ns)
        removed.append(spool.clean_up())

    half = dead.draft()
    half.append(CONTENT)
    dead.spill(half)
    its_view.before = meanwhile
    draft = living.draft()
    for _ in range(3):
        draft.append(CONTENT)
        living.spill(draft)
    dead_view.die()
    assert living.accept([(draft, ENVELOPE)]) == [None]
    its_view.before = None

    assert len(removed) > 8
    assert sum(removed) == 1
    assert (engine.names("tmp"), engine.names("corrupt")) == ([], [])
    assert taken(spool) == [draft.queue_id]
    assert spool.load(draft.queue_id).content == CONTENT * 3


@pytest.mark.parametrize("spills", [False, True])
def test_a_draft_that_clean_up_took_is_refused(*, spills: bool) -> None:
    """Clean-up holds the lock of a file that its writer has created and not locked yet."""
    engine = on_the_model()
    recovered(engine).close()
    intake, view = listener(engine)
    assert isinstance(engine.disk, ModelDisk)
    cleaner = engine.disk.another()

    def lock_first() -> None:
        view.after = None
        (name,) = cleaner.names(engine.layout.folder("tmp"))
        assert cleaner.lock_open(cleaner.open_update(engine.layout.draft(QueueId(name))))

    draft = intake.draft()
    draft.append(b"Subject: taken\r\n\r\n")
    view.after = lock_first
    if spills:
        with pytest.raises(OSError, match="abandoned"):
            intake.spill(draft)
    else:
        (error,) = intake.accept([(draft, ENVELOPE)])
        assert error is not None
        assert error.errno == errno.EAGAIN

    cleaner.die()
    spool = recovered(engine)
    assert (engine.names("tmp"), taken(spool)) == ([], [])


def test_only_notes_are_removed_and_only_after_their_message() -> None:
    engine = on_the_model()
    spool, intake = recovered(engine), engine.intake()
    draft = intake.draft()
    assert intake.accept([(draft, ENVELOPE)]) == [None]
    taken(spool)
    spool.note({draft.queue_id: [note(0)]})
    engine.plant(f"{engine.root}/bounce/0000000000000000", b'{"index":0,"sta')
    engine.plant(f"{engine.root}/bounce/0000000000000001", b"my shopping list")

    again(engine, spool).close()

    assert engine.names("bounce") == [draft.queue_id]
    assert engine.names("corrupt") == ["bounce-0000000000000001"]
