"""The PostgreSQL engine: the common suite, and tests of what only a shared database has."""

import contextlib
import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import LiteralString
from unittest.mock import patch

import psycopg
import pytest

from relay.mail.envelope import QueueId
from relay.policy.source import parse_policy
from relay.spool import engines
from relay.spool.convert import convert
from relay.spool.database import DatabaseError
from relay.spool.database.connection import Database, once
from relay.spool.database.schema import make
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import ENGINES, engine_of, engines_of
from relay.spool.interface import (
    INLINE_BYTES,
    Absent,
    Intake,
    Message,
    Settlement,
    Spool,
    SpoolBusy,
    Status,
    Unavailable,
)
from relay.spool.postgresql.engine import PostgresqlSpool
from relay.spool.postgresql.intake import PostgresqlIntake, prepare
from tests.engines.spool.conformance import Conformance
from tests.engines.spool.engine import (
    CONTENT,
    ENVELOPE,
    RELAYED,
    Engine,
    accept,
    bounced,
    claimed,
    ended,
    fill,
    read,
    settle,
)
from tests.engines.spool.test_convert import told_by
from tests.fakes.cut_line import CutLine
from tests.fakes.interleaving import BLOCKED, Pair, interleaved
from tests.fakes.model_database import ModelDatabase
from tests.fakes.postgresql import Server
from tests.system.hosts import through

LONG = CONTENT + bytes(2 * INLINE_BYTES)
KEPT = (
    "FROM relay.owner FULL JOIN relay.message ON identity = owner"
    " WHERE queue_id IS NOT NULL OR until > clock_timestamp()"
)
LAPSED: LiteralString = "UPDATE relay.owner SET until = clock_timestamp() - interval '1 second'"


class PostgresqlEngine(Engine):
    """One database for each test, and a folder."""

    def __init__(self, root: str, url: str, closing: contextlib.ExitStack) -> None:
        """Make a host with this root. The first host of a database makes the tables."""
        super().__init__(root, RealDisk())
        self.database = Database(url)
        with contextlib.suppress(DatabaseError):
            make(self.database)
        self._closing = closing

    def start(self) -> PostgresqlSpool:
        at = self.root, self.view(), self.clock, self.tell
        spool = PostgresqlSpool(*at, database=self.database, host="here", lease_seconds=60)
        self._closing.callback(spool.close)
        return spool

    def intake(self) -> Intake:
        prepare(self.root, self.disk)
        intake = PostgresqlIntake(
            self.root, self.view(), self.clock, database=self.database, random_bytes=self.chance()
        )
        self._closing.callback(intake.close)
        return intake

    def damage(self, queue_id: QueueId) -> None:
        with once(self.database) as connection:
            last = "SELECT number, content FROM relay.chunk WHERE queue_id = %s ORDER BY number DESC LIMIT 1"
            for number, content in connection.execute(last, (queue_id,)).fetchall():
                changed = bytearray(content)
                changed[len(changed) // 2] ^= 1
                update = "UPDATE relay.chunk SET content = %s WHERE queue_id = %s AND number = %s"
                connection.execute(update, (bytes(changed), queue_id, number))


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


SIMULATED = "what the simulation has of it"
anywhere = pytest.mark.parametrize("url", ["PostgreSQL", SIMULATED], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, closing: contextlib.ExitStack) -> str:
    """Return the URL of an empty database. Its users are closed before the next database is made."""
    if getattr(request, "param", "") == SIMULATED:
        closing.enter_context(patch.object(psycopg, "connect", ModelDatabase(random.Random(0)).connect))
        return "postgresql://"
    server: Server = request.getfixturevalue("server")
    return server.make_database("spool")


@anywhere
class TestInADatabase(Conformance):
    @pytest.fixture
    def engine(self, url: str, tmp_path: Path, closing: contextlib.ExitStack) -> PostgresqlEngine:
        return PostgresqlEngine(str(tmp_path / "spool"), url, closing)


Hosts = tuple[PostgresqlEngine, PostgresqlEngine]


@pytest.fixture
def hosts(url: str, tmp_path: Path, closing: contextlib.ExitStack) -> Hosts:
    one, other = (PostgresqlEngine(str(tmp_path / name), url, closing) for name in "ab")
    # With equal clocks both hosts would draw the same ids.
    other.clock.advance(3_600_000_000_000)
    return one, other


def taken(hosts: Hosts, count: int = 3) -> tuple[PostgresqlSpool, PostgresqlSpool, list[QueueId]]:
    """Let the first host accept and claim messages; return both owners and the ids."""
    one, other = (host.start() for host in hosts)
    intake = hosts[0].intake()
    ids = [accept(intake) for _ in range(count)]
    assert [message.queue_id for message in claimed(one)] == ids
    return one, other, ids


def lapse(hosts: Hosts) -> None:
    """Let all leases expire."""
    with once(hosts[0].database) as connection:
        connection.execute(LAPSED)


@anywhere
def test_each_accepted_message_is_claimed_by_exactly_one_of_the_hosts(hosts: Hosts) -> None:
    one, other = (host.start() for host in hosts)
    intakes = [host.intake() for host in hosts]
    ids = {accept(intake) for intake in intakes for _ in range(40)}
    found: dict[Spool, list[QueueId]] = {one: [], other: []}
    together = threading.Barrier(2)

    def claim(spool: Spool) -> None:
        together.wait()
        for _ in range(40):
            found[spool] += [message.queue_id for message in spool.claim(3)]

    threads = [threading.Thread(target=claim, args=(spool,)) for spool in found]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(found[one] + found[other]) == sorted(ids)


@anywhere
def test_a_claim_lasts_as_long_as_its_lease_and_a_stop_ends_it(hosts: Hosts) -> None:
    one, other, ids = taken(hosts)
    assert other.claim(9) == []
    assert other.read(ids[:1])[0].__class__ is Absent
    one.close()
    assert [message.queue_id for message in other.claim(9)] == ids


@anywhere
def test_a_message_that_was_taken_over_is_absent_for_its_former_host(hosts: Hosts) -> None:
    one, other, ids = taken(hosts)
    lapse(hosts)
    assert [message.queue_id for message in other.claim(2)] == ids[:2]
    done = ended(*ids)

    assert [type(each) for each in one.settle(done)] == [Absent, Absent, type(None)]
    assert [type(each) for each in one.read(ids)] == [Absent] * 3
    assert [read(other, each).left for each in ids[:2]] == [(0, 1, 2)] * 2
    # The former host goes on with new messages.
    new = accept(hosts[0].intake())
    assert [message.queue_id for message in one.claim(9)] == [new]
    assert other.settle(done[:2]) == [None, None]
    # Nor does it end what the other host ended.
    assert [type(each) for each in one.settle(done[:2])] == [Absent, Absent]


@anywhere
def test_a_host_that_reads_a_message_owns_it_even_if_its_lease_was_over(hosts: Hosts) -> None:
    one, other, ids = taken(hosts)
    lapse(hosts)
    assert read(one, ids[0]).left == (0, 1, 2)
    assert other.claim(9) == []


@anywhere
def test_nothing_is_taken_over_of_a_host_that_just_renews_its_lease(hosts: Hosts) -> None:
    _, other, ids = taken(hosts)
    lapse(hosts)
    renew = "UPDATE relay.owner SET host = '' WHERE identity IN (SELECT owner FROM relay.message)"
    with once(hosts[0].database) as renewing:
        renewing.execute(renew)
        assert other.claim(9) == []
    assert [message.queue_id for message in other.claim(9)] == ids


@anywhere
def test_a_restart_owns_its_messages_at_once_and_its_predecessor_owns_none(
    hosts: Hosts, tmp_path: Path
) -> None:
    """This happens if the spool folder is copied to another host."""
    one, _, ids = taken(hosts)
    shutil.copytree(hosts[0].root, tmp_path / "copy")
    hosts[0].root = str(tmp_path / "copy")
    copy = hosts[0].start()
    assert [message.queue_id for message in claimed(copy)] == ids
    (failure,) = one.settle(ended(ids[0]))
    assert isinstance(failure, Unavailable)
    assert "is its folder a copy?" in str(failure)
    with pytest.raises(Unavailable):
        one.claim(1)
    assert [type(each) for each in one.read(ids)] == [Absent] * 3
    assert read(copy, ids[0]).left == (0, 1, 2)


@anywhere
def test_a_claim_skips_locked_messages_instead_of_waiting(hosts: Hosts) -> None:
    """It waits neither for a settlement in progress nor for another claim."""
    _, other, ids = taken(hosts)
    lapse(hosts)
    with once(hosts[0].database) as settling:
        settling.execute("SELECT 1 FROM relay.message WHERE queue_id = %s FOR UPDATE", (ids[0],))
        assert [message.queue_id for message in other.claim(9)] == ids[1:]
    assert [message.queue_id for message in other.claim(9)] == ids[:1]


def meet_lock(url: str, statement: str, call: Callable[[], object]) -> None:
    """Make a call while a transaction locks rows that it needs. Commit once the call waits."""
    calling = threading.Thread(target=call)
    with psycopg.connect(url) as holding, psycopg.connect(url, autocommit=True) as watching:
        holding.execute(statement.encode())
        calling.start()
        while calling.is_alive() and watching.execute(BLOCKED).fetchone() is None:
            pass
        holding.commit()
        calling.join()


def test_a_settlement_waits_for_a_take_over_in_progress_and_finds_it_done(hosts: Hosts, url: str) -> None:
    one, _, ids = taken(hosts, count=1)
    found: list[object] = []
    take_over = "UPDATE relay.message SET owner = gen_random_uuid()"
    meet_lock(url, take_over, lambda: found.extend(one.settle(ended(*ids))))
    assert [type(each) for each in found] == [Absent]
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT statuses FROM relay.message").fetchall() == [("TTT",)]


def by_line(host: PostgresqlEngine, line: CutLine) -> None:
    host.database = Database(through(line, host.database.url))


def test_a_claim_repeated_after_a_lost_reply_waits_for_its_own_locked_rows(
    hosts: Hosts, server: Server, url: str
) -> None:
    """Another host's verb may lock one of these rows at that moment."""
    found: list[QueueId] = []
    with CutLine(server.port) as line:
        by_line(hosts[0], line)
        spool, intake = hosts[0].start(), hosts[0].intake()
        ids = [accept(intake) for _ in range(3)]
        line.cut(b"COMMIT")
        with pytest.raises(Unavailable):
            spool.claim(9)
        held = f"SELECT 1 FROM relay.message WHERE queue_id = '{ids[1]}' FOR UPDATE"
        meet_lock(url, held, lambda: found.extend(message.queue_id for message in claimed(spool)))
    assert found == ids


def test_a_start_that_fails_after_its_commit_leaves_no_lease(hosts: Hosts, server: Server) -> None:
    prepared, _ = (host.start() for host in hosts)
    prepared.close()
    with CutLine(server.port) as line:
        by_line(hosts[0], line)
        line.cut(b"COMMIT")
        with pytest.raises(Unavailable):
            hosts[0].start()
    assert server.is_so("FROM relay.owner WHERE fence = 2 AND until < clock_timestamp()", database="spool")


@pytest.mark.parametrize(
    ("wish", "state", "stays"),
    [
        ("hold", "waiting", True),
        ("delete waiting", "waiting", True),
        ("bounce held deferred", "deferred", True),
        ("delete waiting", "deferred", False),
        ("delete held", "waiting", False),
        ("retry deferred", "deferred", False),
    ],
)
def test_a_message_to_be_held_or_ended_is_claimed_as_held_if_in_a_wished_state(
    server: Server, hosts: Hosts, wish: str, state: str, stays: bool
) -> None:
    """Otherwise the new owner would send the message before it obeys the wish."""
    one, other, (queue_id,) = taken(hosts, count=1)
    in_an_hour_ns = time.time_ns() + 3_600_000_000_000
    settle(one, Settlement(queue_id, ENVELOPE, next_attempt_at_ns=in_an_hour_ns * (state == "deferred")))
    assert other.ask([queue_id], wish) == {queue_id: "here"}
    server.execute(LAPSED, database="spool")
    assert [message.is_held for message in other.claim(9)] == [stays]
    assert other.wishes() == {wish.split(maxsplit=1)[0] if stays else wish: [queue_id]}


def test_the_answer_to_a_wish_does_not_answer_its_replacement(hosts: Hosts) -> None:
    one, other, ids = taken(hosts)
    other.ask(ids, "hold")
    ((wish, wanted),) = one.wishes().items()
    other.ask(ids[:1], "delete")
    one.answer(wish, dict.fromkeys(wanted, "ok"))
    assert other.answers(ids) == {ids[0]: None, ids[1]: "ok", ids[2]: "ok"}
    assert one.wishes() == {"delete": ids[:1]}


def test_a_release_cancels_the_wish_before_it(hosts: Hosts) -> None:
    one, other, ids = taken(hosts)
    other.ask(ids, "delete")
    settle(one, Settlement(ids[0], ENVELOPE, is_held=False))
    settle(one, Settlement(ids[1], ENVELOPE, is_held=True))
    assert [sorted(of) for of in one.wishes().values()] == [ids[1:]]


@anywhere
def test_a_second_message_with_the_same_id_is_refused(hosts: Hosts) -> None:
    spool, intake, same = hosts[0].start(), hosts[0].intake(), hosts[0].intake()
    draft = intake.draft()
    draft.append(CONTENT)
    assert intake.accept([(draft, ENVELOPE)]) == [None]
    copied = same.draft()
    copied.queue_id = draft.queue_id
    copied.append(b"Subject: another\r\n")
    (refused,) = same.accept([(copied, ENVELOPE)])
    assert isinstance(refused, Unavailable)
    assert [message.content for message in claimed(spool)] == [CONTENT]


@pytest.fixture
def lines(server: Server, hosts: Hosts) -> Iterator[tuple[CutLine, CutLine]]:
    """Connect each host to the server by its own proxy."""
    with CutLine(server.port) as one, CutLine(server.port) as other:
        for host, line in zip(hosts, (one, other), strict=True):
            by_line(host, line)
        yield one, other


@pytest.mark.full
def test_a_settlement_that_meets_a_take_over_at_any_statement_is_done_or_not(
    url: str, hosts: Hosts, lines: tuple[CutLine, CutLine]
) -> None:
    """The owner of a message then knows all that was settled, and no host has an ended message."""
    intake, (one, other) = hosts[0].intake(), (host.start() for host in hosts)
    taken: dict[QueueId, Message] = {}
    results: list[object] = []
    ids: list[QueueId] = []
    met = 0

    def settle_both() -> None:
        results[:] = one.settle([*ended(ids[0]), Settlement(ids[1], ENVELOPE, {0: RELAYED})])

    def take_over() -> None:
        taken.update((message.queue_id, message) for message in other.claim(9))

    def pair() -> Pair:
        ids[:] = [accept(intake) for _ in range(2)]
        taken.clear()
        assert [message.queue_id for message in claimed(one)] == ids
        ending.execute(LAPSED)
        return settle_both, take_over

    with psycopg.connect(url, autocommit=True) as ending:
        for _ in interleaved(lines, url, pair):
            met += 1
            for queue_id, result in zip(ids, results, strict=True):
                assert isinstance(result, Absent) or (result is None)
                assert result is None or queue_id in taken
            assert (results[0] is None) == (ids[0] not in taken)
            of_each = [[spool.read([queue_id])[0] for spool in (one, other)] for queue_id in ids]
            having = [[each for each in found if isinstance(each, Message)] for found in of_each]
            assert [len(each) for each in having] == [results[0] is not None, 1]
            for message in [*having[1], *(taken[each] for each in ids[1:] if each in taken)]:
                assert (message.statuses[0] is RELAYED) == (results[1] is None)
            ending.execute("DELETE FROM relay.message")
    assert met >= 24


Step = Callable[[Intake, Spool, Sequence[QueueId]], None]


def _accepts(intake: Intake, _spool: Spool, _ids: Sequence[QueueId]) -> None:
    accept(intake, content=LONG, chunk=INLINE_BYTES)


def _claims(_intake: Intake, spool: Spool, ids: Sequence[QueueId]) -> None:
    """Claim all, including the messages of a claim whose reply was lost."""
    assert [message.queue_id for message in claimed(spool)] == ids


def _settles(_intake: Intake, spool: Spool, ids: Sequence[QueueId]) -> None:
    """Mark, report and end one message and mark another, as one group."""
    for failure in spool.settle([bounced(ids[0]), Settlement(ids[1], ENVELOPE, {0: RELAYED})]):
        if failure is not None and not isinstance(failure, Absent):
            raise failure


@pytest.mark.parametrize("is_passed_on", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("step", [_accepts, _claims, _settles])
def test_a_line_cut_at_any_statement_leaves_all_or_nothing(
    hosts: Hosts, server: Server, step: Step, is_passed_on: bool
) -> None:
    """The line is cut before the server gets the statement, or after: also between a COMMIT and its reply."""
    host, _ = hosts
    with CutLine(server.port) as line:
        by_line(host, line)
        for number in range(100):
            intake = host.intake()
            ids = [accept(intake) for _ in range(2)]
            spool = host.start()
            if step is not _claims:
                claimed(spool)
            cuts = line.cuts
            line.cut(after=number, is_passed_on=is_passed_on)
            try:
                step(intake, spool, ids)
                failed = False
            except (Unavailable, AssertionError):
                failed = True
            line.cut(b"nothing")
            if step is _accepts:
                # The message is there and whole, or not there. A message that got 250 must be there.
                queued = [message for message in claimed(spool) if message.shape.size_bytes == len(LONG)]
                assert len(queued) <= 1
                assert failed or len(queued) == 1
                for message in queued:
                    assert b"".join(spool.content(message.queue_id)) == LONG
            elif failed or step is not _claims:
                step(intake, spool, ids)
            found = [each for each in spool.read(ids) if isinstance(each, Message)]
            rest = {message.queue_id: message for message in found}
            if step is _settles:
                assert set(rest) == {ids[1]}
                assert rest[ids[1]].statuses == (RELAYED, Status.TODO, Status.TODO)
                assert len([each for each in claimed(spool) if not each.envelope.reverse_path]) == 1
            else:
                assert set(rest) == set(ids)
            spool.close()
            intake.close()
            server.execute("DELETE FROM relay.message", database="spool")
            if line.cuts == cuts:
                break
        else:
            raise AssertionError("it never ends")
        assert line.cuts > 3


def engine_in(url: str, root: str, folder: Path) -> engines.Engine:
    """Return the engine as a conversion opens it."""
    text = (
        f"spool: {{path: {root}, postgresql: '{url}'}}\nhostname: mx.test\n"
        "listen: [{address: 127.0.0.1:0}]\nupstreams: {isp: {host: smtp.test, limits: []}}\n"
    )
    return engines_of(parse_policy(text.encode(), folder / "policy.yaml"))["postgresql"]


@pytest.mark.parametrize(
    "every",
    [pytest.param(13, marks=pytest.mark.full), pytest.param(1, marks=pytest.mark.crash(least_s=100))],
)
def test_a_conversion_cut_at_any_statement_loses_nothing_and_no_host_sends_a_copy(
    hosts: Hosts, server: Server, url: str, tmp_path: Path, every: int
) -> None:
    """It converts from a maildir and back, but only if no other host may own messages in the database."""
    root, disk = str(tmp_path / "spool"), RealDisk()
    maildir = ENGINES["maildir"]
    maildir.prepare(root, disk)
    opened = partial(maildir.spool, root, disk, hosts[0].clock, lambda *_: None)
    fill(opened(), maildir.intake(root, disk, hosts[0].clock))
    before = told_by(opened())
    hosts[0].root = root

    def another_host_has() -> int:
        with contextlib.closing(hosts[1].start()) as other:
            return len(claimed(other))

    with CutLine(server.port) as line:
        engines = ENGINES | {"postgresql": engine_in(through(line, url), root, tmp_path)}
        for number in itertools.count(step=every):
            cuts = line.cuts
            for target in ("postgresql", "maildir"):
                line.cut(after=number)
                for is_cut in (True, False):
                    failed = is_cut
                    with contextlib.suppress(Unavailable) if is_cut else contextlib.nullcontext():
                        convert(root, target, disk, hosts[0].clock, lambda *_: None, engines=engines)
                        failed = False
                    line.cut(b"nothing")
                    # Any host may claim what counts in the database, at once or after the repetition.
                    found = another_host_has()
                    is_there = engine_of(root, disk) == "postgresql"
                    assert found == is_there * len(before) or (
                        failed and target == "postgresql" and not found
                    )
                    if failed and target == "postgresql" and not is_there:
                        assert not server.is_so(KEPT, database="spool")
                assert told_by(hosts[0].start() if target == "postgresql" else opened()) == before
            assert not server.is_so("FROM relay.message", database="spool")
            if line.cuts == cuts:
                break
        assert number > 30
        new = accept(hosts[1].intake())
        convert(root, "postgresql", disk, hosts[0].clock, lambda *_: None, engines=engines)
        other = hosts[1].start()
        ids = [new, *(message.queue_id for message, _ in before)]
        assert [message.queue_id for message in other.claim(99)] == sorted(ids)
        with pytest.raises(SpoolBusy, match="here may be sending mail of this queue"):
            convert(root, "maildir", disk, hosts[0].clock, lambda *_: None, engines=engines)
        other.close()
        assert another_host_has() == len(before) + 1


def test_leftovers_of_a_conversion_are_removed_in_one_statement_without_a_time_limit(
    hosts: Hosts, server: Server, tmp_path: Path
) -> None:
    root, disk = hosts[0].root, RealDisk()
    spool, intake = hosts[0].start(), hosts[0].intake()
    accept(intake)
    assert len(claimed(spool)) == 1
    spool.close()
    intake.close()
    server.execute(
        "INSERT INTO relay.message (queue_id, header, envelope, statuses, owner, fence)"
        " SELECT queue_id || number, header, envelope, statuses, owner, fence"
        " FROM relay.message, generate_series(1001, 3500) AS number",
        "CREATE FUNCTION relay.judge() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN ASSERT current_setting('statement_timeout') = '0'; RETURN old; END $$",
        "CREATE TRIGGER judge BEFORE DELETE ON relay.message FOR EACH ROW EXECUTE FUNCTION relay.judge()",
        database="spool",
    )
    with CutLine(server.port) as line:
        by_line(hosts[0], line)
        engine = engine_in(hosts[0].database.url, root, tmp_path)
        line.cut(b"DELETE")
        with pytest.raises(Unavailable):
            engine.remove_leftovers(root, disk)
        engine.remove_leftovers(root, disk)
    assert not server.is_so("FROM relay.message", database="spool")


def test_the_claims_of_a_killed_conversion_end_with_its_lease(
    hosts: Hosts, server: Server, url: str, tmp_path: Path, closing: contextlib.ExitStack
) -> None:
    accept(hosts[0].intake())
    source = engine_in(url, hosts[0].root, tmp_path).spool(
        hosts[0].root, RealDisk(), hosts[0].clock, lambda *_: None
    )
    closing.callback(source.close)
    assert len(claimed(source)) == 1
    assert server.is_so("FROM relay.owner WHERE until > clock_timestamp()", database="spool")
    assert not server.is_so("FROM relay.owner WHERE until > clock_timestamp() + '1 day'", database="spool")
