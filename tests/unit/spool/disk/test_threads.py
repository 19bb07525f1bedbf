"""An executor whose threads all run, or none."""

import threading

import pytest

from relay.spool.disk.threads import started


def test_all_threads_run_before_the_first_call() -> None:
    before = threading.active_count()
    threads = started(3, "some")

    assert threading.active_count() == before + 3
    assert threads.submit(lambda: "done").result() == "done"
    assert threading.active_count() == before + 3
    threads.shutdown()


@pytest.mark.parametrize("possible", [0, 1, 2])
def test_fewer_threads_than_asked_for_are_told_and_none_stays(
    monkeypatch: pytest.MonkeyPatch, possible: int
) -> None:
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def begin(thread: threading.Thread) -> None:
        if len(begun) == possible:
            raise RuntimeError("can't start new thread")
        start(thread)
        begun.append(thread)

    monkeypatch.setattr(threading.Thread, "start", begin)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        started(3, "some")

    assert len(begun) == possible
    for thread in begun:
        thread.join(60)
        assert not thread.is_alive()
