"""Connections in readiness: how many are opened."""

import asyncio
import errno
import io

import pytest

from relay.clock import SystemClock
from relay.sender import connections
from relay.sender.connections import ReadyConnections
from relay.smtp.reply import Phase
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry
from relay.upstream.connection import Connection, UpstreamUnavailable, open_connection
from relay.upstream.pool import Pool
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import DEFAULT, Script, Smarthost, turns
from tests.unit.upstream.lines import caps
from tests.unit.upstream.sessions import account


async def test_after_one_connection_too_many_the_one_that_works_must_do() -> None:
    clock, events, changed = SystemClock(), io.StringIO(), asyncio.Event()
    refusals: list[Answer] = []
    log = Events(events, "text", clock)
    async with Smarthost(Script(connect=turns(DEFAULT, *["421 4.7.0 too many"] * 9))) as host:
        pool: Pool[Connection] = Pool(lambda: open_connection(account(host), clock), **caps(), clock=clock)
        ready = ReadyConnections(
            "isp",
            pool,
            Telemetry(log, Metrics(clock), clock),
            on_change=changed.set,
            on_unavailable=refusals.append,
        )
        ready.take(1, openings=None)
        await changed.wait()
        (connection,) = ready.take(1, openings=None)
        changed.clear()
        ready.take(1, openings=None)
        await changed.wait()

        # It is neither idle nor ready, and no transaction need have begun on it.
        assert not ready.take(5, openings=None)
        assert not ready.is_opening
        assert not refusals
        # Once none is open, what is refused has to be tried again.
        pool.discard(connection)
        changed.clear()
        ready.take(1, openings=None)
        await changed.wait()
        assert len(refusals) == 1
        ready.stop()
        await pool.close()


async def test_a_lack_of_means_is_over_when_its_timer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's timers and the clock may differ by a little, and nobody would look again."""
    monkeypatch.setattr(connections, "MEANS_RETRY_NS", 1_000_000)
    clock, changed = FakeClock(), asyncio.Event()
    failures = [OSError(errno.EMFILE, "Too many open files")]

    async with Smarthost() as host:

        async def opener() -> Connection:
            if failures:
                answer = Answer(Verdict.PAUSE, Phase.CONNECT, None, "Too many open files")
                raise UpstreamUnavailable(answer) from failures.pop()
            return await open_connection(account(host), SystemClock())

        pool: Pool[Connection] = Pool(opener, **caps(), clock=clock)
        ready = ReadyConnections(
            "isp",
            pool,
            Telemetry(Events(io.StringIO(), "text", clock), Metrics(clock), clock),
            on_change=changed.set,
            on_unavailable=lambda answer: pytest.fail(answer.text),
        )
        ready.take(1, openings=None)
        await changed.wait()
        changed.clear()
        ready.take(1, openings=None)
        assert ready.is_opening
        await changed.wait()
        assert len(ready.take(1, openings=None)) == 1
        ready.stop()
        await pool.close()
