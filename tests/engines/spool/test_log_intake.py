"""Listeners of a log: what a sender beside them may do at each of their calls, and what they leave."""

import errno
import itertools

import pytest

from relay.mail.envelope import QueueId
from relay.spool.interface import INLINE_BYTES
from relay.spool.log.engine import LogSpool
from relay.spool.log.intake import LogIntake
from relay.spool.root.headroom import HEADROOM_BYTES, NoHeadroom
from tests.engines.spool.engine import CONTENT, ENVELOPE, accept, recovered, taken
from tests.engines.spool.log_engine import LogEngine, end, log_on_the_model, model_of
from tests.engines.spool.recovering import recover
from tests.fakes.disk import Fault, ModelDisk

LONG = b"Subject: long\r\n\r\n" + b"y" * INLINE_BYTES


def listener(engine: LogEngine) -> tuple[LogIntake, ModelDisk]:
    """Return a listener and its view of the disk."""
    engine.intake()
    view = model_of(engine).another()
    return LogIntake(engine.root, view, engine.clock, engine.chance()), view


@pytest.mark.parametrize("content", [CONTENT, LONG])
def test_mail_leaves_headroom(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    monkeypatch.setattr(view, "free", lambda _path: (HEADROOM_BYTES + len(content) - 1, 1000))
    draft, spilled = intake.draft(), intake.draft()
    draft.append(content)
    spilled.append(content)
    (error,) = intake.accept([(draft, ENVELOPE)])
    assert isinstance(error, NoHeadroom)
    with pytest.raises(NoHeadroom):
        intake.spill(spilled)
    # What was given up is not accepted later, whole or not.
    spilled.append(b"more")
    monkeypatch.undo()
    (given_up,) = intake.accept([(spilled, ENVELOPE)])
    assert isinstance(given_up, OSError)
    assert given_up.errno == errno.EINVAL
    assert (taken(spool), engine.names("long")) == ([], [])


@pytest.mark.parametrize("is_a_start", [False, True])
@pytest.mark.parametrize("content", [pytest.param(CONTENT, id="short"), pytest.param(LONG, id="long")])
def test_mail_is_taken_once_whatever_a_sender_does_at_any_call_of_its_listener(
    content: bytes, *, is_a_start: bool
) -> None:
    for nth in itertools.count(1):
        if not _accept_while_a_sender_looks(content, nth, is_a_start=is_a_start):
            break
    assert nth > 8


def _accept_while_a_sender_looks(content: bytes, nth: int, *, is_a_start: bool) -> bool:
    """Accept two messages, and let a sender take what there is before the nth call, if there are so many."""
    engine = log_on_the_model()
    spool, (intake, view), met = recovered(engine), listener(engine), list[QueueId]()
    calls = itertools.count(1)

    def look(_step: str) -> None:
        nonlocal spool
        if next(calls) == nth:
            if is_a_start:
                spool.close()
                spool = engine.start()
                met.extend(entry.queue_id for entry in recover(spool).entries)
            spool.clean_up()
            met.extend(taken(spool))

    view.before = look
    queue_ids = [accept(intake, content=content, chunk=100_000) for _ in range(2)]
    view.before = None
    assert sorted(met + taken(spool)) == queue_ids, f"before call {nth}"
    assert all(b"".join(spool.content(queue_id)) == content for queue_id in queue_ids)
    return next(calls) > nth


def test_a_listener_goes_on_in_another_stream_after_a_fault() -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    first = accept(intake)
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_content"})))
    draft = intake.draft()
    draft.append(CONTENT)
    assert [error is not None for error in intake.accept([(draft, ENVELOPE)])] == [True]
    second = accept(intake)
    # That it is accepted cannot be announced: its stream ends, and all of that is read.
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"write"}), path=".lock"))
    assert taken(spool) == [first, second]
    rest = [accept(intake), accept(intake)]
    assert taken(spool) == rest


class CountsDescriptors(ModelDisk):
    most = 0

    def _open(self, inode: int, path: str, *, appends: bool = False) -> int:
        self.most = max(self.most, len(self._fds) + 1)
        return super()._open(inode, path, appends=appends)


def test_of_dead_listeners_nothing_is_left_and_few_descriptors_are_open() -> None:
    engine = log_on_the_model()
    recovered(engine).close()
    queue_ids = []
    for number in range(150):
        intake, view = listener(engine)
        queue_ids.append(accept(intake))
        view.die()
        # And one that died before it had mail.
        model_of(engine).plant(f"{engine.layout.log}/{number:016d}.lock")
    view = CountsDescriptors(model_of(engine).platter)
    spool = LogSpool(engine.root, view, engine.clock)
    assert [entry.queue_id for entry in recover(spool).entries] == sorted(queue_ids)
    for _ in range(5):
        assert spool.take(5) == []
    for queue_id in queue_ids:
        end(spool, queue_id)
    assert [name for name in engine.names("log") if not name.startswith("sender")] == []
    assert 5 < view.most < 100
