"""What is no file at all, giant, or not ours to open, in the place of each file of the spool, on the kernel.

Each test runs against a deadline of the suite's own: an open that blocks on a FIFO never ends.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.mail.age import BootsRecord, Stretch
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import SpoolBusy, Totals
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.root.foreign import BOOTS_FORMAT
from relay.spool.root.trigger import Trigger
from tests.fakes.foreign import GIANT_BYTES, KINDS, kind_of, plant
from tests.unit.spool.engine import BOUNCED, CONTENT, accept, note, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_kernel
from tests.unit.spool.recovering import recover

NOBODY = 65534
FOREIGN_ID = "0123456789abcdef"
PLACES = ["tmp", "new", "cur/07", "hold", "bounce"]


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "victim"
    path.write_text("untouched")
    yield path
    assert path.read_text() == "untouched"


@pytest.fixture
def engine(tmp_path: Path) -> MaildirEngine:
    return on_the_kernel(tmp_path)


@pytest.mark.parametrize("place", PLACES)
def test_no_kind_of_thing_in_a_folder_keeps_mail_from_going(
    engine: MaildirEngine, place: str, victim: Path
) -> None:
    recovered(engine).close()
    for number, kind in enumerate(KINDS):
        plant(Path(engine.root) / place / f"{FOREIGN_ID[:-1]}{number}", kind, victim)
    found = {kind_of(path) for path in (Path(engine.root) / place).iterdir()}
    queue_id = accept(engine.intake())

    spool = recovered(engine)
    assert spool.load(queue_id).content == CONTENT
    kept = {kind_of(path) for path in (Path(engine.root) / "corrupt").iterdir()}
    # What is empty in tmp/ and bounce/ is what a crash leaves there of ours.
    assert len(found - kept) == (1 if place in ("tmp", "bounce") else 0)
    assert spool.corrupt_count() == len(kept) == len(spool.set_aside_files(99))


def test_a_record_of_boots_stays_where_it_is(engine: MaildirEngine) -> None:
    recovered(engine).close()
    record = Path(engine.root) / "boots"
    record.write_bytes(BOOTS_FORMAT.render(BootsRecord((Stretch("boot", 1, 2, 0),))))

    spool = recovered(engine)

    assert record.exists()
    assert spool.corrupt_count() == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["ledger", "ledger.new", "trigger", "reserve", "control.sock", "boots", "boots.new", "notes.new"]
)
def test_nothing_in_place_of_a_file_we_can_remake_stops_a_start(
    engine: MaildirEngine, name: str, kind: str, victim: Path
) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.close()
    path = Path(engine.root) / name
    path.unlink(missing_ok=True)
    plant(path, kind, victim)
    found = kind_of(path)
    if kind == "a FIFO" and name == "trigger":
        path.chmod(0o600)

    spool = recovered(engine)
    Trigger(engine.root, RealDisk()).listen()
    assert spool.load(queue_id).content == CONTENT
    kept = {kind_of(path) for path in (Path(engine.root) / "corrupt").iterdir()}
    is_ours = (kind, name) in {
        ("an empty file", "ledger"),
        ("an empty file", "ledger.new"),
        ("an empty file", "reserve"),
        ("an empty file", "boots.new"),
        ("an empty file", "notes.new"),
        ("a socket", "control.sock"),
        ("a FIFO", "trigger"),
    }
    assert kept == (set() if is_ours else {found})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["lock", "format"])
def test_lock_and_format_are_never_moved_and_a_start_is_refused(
    engine: MaildirEngine, name: str, kind: str, victim: Path
) -> None:
    recovered(engine).close()
    path = Path(engine.root) / name
    path.unlink()
    plant(path, kind, victim)
    found = kind_of(path)
    # flock holds on a FIFO as on any file, and nobody reads what is in `lock`.
    if name == "lock" and kind in ("an empty file", "a giant file", "a FIFO"):
        spool = recovered(engine)
        with pytest.raises(SpoolBusy):
            engine.start()
        spool.close()
    else:
        with pytest.raises((OSError, ValueError)):
            engine.start()
    assert kind_of(path) == found


@pytest.mark.parametrize("kind", KINDS)
def test_a_trigger_that_is_no_fifo_is_never_written_to(
    engine: MaildirEngine, kind: str, victim: Path
) -> None:
    recovered(engine).close()
    path = Path(engine.root) / "trigger"
    path.unlink()
    plant(path, kind, victim)
    trigger = Trigger(engine.root, RealDisk())
    trigger.pull()

    assert path.lstat().st_size in (0, GIANT_BYTES) or kind != "an empty file"
    if kind != "a FIFO":
        with pytest.raises(OSError, match=r"."):
            trigger.listen()
    trigger.close()


@pytest.fixture
def as_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be a user whom modes bind, for as long as a test takes; paths must be relative."""
    monkeypatch.chdir(tmp_path)
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(tmp_path, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield
    if is_root:
        os.seteuid(0)


@pytest.mark.usefixtures("as_nobody")
@pytest.mark.parametrize("mode", [0o000, 0o400, 0o200])
def test_files_that_may_not_be_opened_are_set_aside_or_made_anew(mode: int) -> None:
    engine = MaildirEngine("spool", RealDisk())
    spool, intake = recovered(engine), engine.intake()
    closed, whole = accept(intake), accept(intake)
    taken(spool)
    spool.mark({whole: {0: BOUNCED}})
    spool.note({whole: [note(0)]})
    spool.close()
    (Path("spool/tmp") / FOREIGN_ID).write_bytes(b"mine")
    paths = [engine.layout.queued(closed), engine.layout.notes(whole), f"spool/tmp/{FOREIGN_ID}"]
    for path in (*paths, "spool/ledger", "spool/trigger"):
        Path(path).chmod(mode)

    spool = engine.start()
    recovery = recover(spool)
    assert [entry.queue_id for entry in recovery.entries] == [whole]
    assert {closed, "ledger", "trigger", f"bounce-{whole}", f"tmp-{FOREIGN_ID}"} <= set(
        engine.names("corrupt")
    )
    assert spool.totals() != Totals()
    Trigger("spool", RealDisk()).listen()


def test_names_in_corrupt_are_listed_with_what_they_are(engine: MaildirEngine, victim: Path) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    corner = Path(engine.root) / "corrupt"
    for kind in KINDS:
        plant(corner / kind, kind, victim)
    whole = Path(engine.layout.queued(queue_id)).read_bytes()
    (corner / f"{queue_id}.1").write_bytes(whole)
    (corner / f"{queue_id}.2").write_bytes(whole[:-1])

    listed = {file.name: file for file in spool.set_aside_files(99)}
    assert set(listed) == {*KINDS, f"{queue_id}.1", f"{queue_id}.2"}
    assert listed[f"{queue_id}.1"].reverse_path == "list-owner@example.org"
    assert listed[f"{queue_id}.1"].recipients_left == 3
    assert "can be read" in listed[f"{queue_id}.1"].reason
    assert "bytes long" in listed[f"{queue_id}.2"].reason
    assert listed["a giant file"].size_bytes == GIANT_BYTES
    assert all(file.reason for file in listed.values())
    assert len(spool.set_aside_files(2)) == 2


def test_a_name_of_the_greatest_length_is_set_aside_each_time(engine: MaildirEngine) -> None:
    spool: MaildirSpool = recovered(engine)  # type: ignore[assignment]  # the engine has no other
    for name in ("x" * 255, "x" * 254 + "\udcff", "x" * 255):
        (Path(engine.root) / "new" / name).write_bytes(b"mine")
        assert taken(spool) == []
    (Path(engine.root) / "tmp" / ("y" * 255)).write_bytes(b"mine")
    spool.clean_up()

    assert spool.corrupt_count() == 4
    assert {path.read_bytes() for path in (Path(engine.root) / "corrupt").iterdir()} == {b"mine"}
