"""The notices on disk: through a crash at each step, and beside files that are not ours."""

import json
import random
from pathlib import Path

import pytest

from relay.hooks.notice import notice_id, read_notice
from relay.hooks.notice_files import KeptNotice, NoticeFiles
from relay.spool.disk.durable import RealDisk
from relay.spool.root.headroom import HEADROOM_BYTES, NoHeadroom
from tests.fakes.disk import ModelDisk

FOLDER = "/spool.notices"
KEY = "0123456789ab"


def kept(number: int) -> KeptNotice:
    chosen = notice_id(number, "00000000")
    return KeptNotice(read_notice(json.dumps({"event": "bounced", "id": chosen}).encode()), KEY)


def test_a_power_cut_at_any_step_leaves_each_notice_whole_or_not_at_all() -> None:
    disk, rng = ModelDisk(), random.Random(1)
    durable: list[KeptNotice] = []
    files = NoticeFiles(FOLDER, disk)
    seen = []

    def look() -> None:
        for survivor in disk.cuts(rng, 4):
            found, unread = NoticeFiles(FOLDER, survivor).read()
            assert unread == []
            assert set(durable) <= set(found) <= {kept(1), kept(2)}
            assert [name for name in survivor.names(FOLDER) if name.endswith(".new")] == []
            seen.append(len(found))

    disk.make_directory(FOLDER)
    disk.after = look
    for number in (1, 2):
        files.write(kept(number))
        durable.append(kept(number))
        look()

    assert set(seen) == {0, 1, 2}


def test_a_removed_notice_is_gone_or_told_again() -> None:
    disk = ModelDisk()
    files = NoticeFiles(FOLDER, disk)
    files.write(kept(1))

    files.remove(kept(1))
    files.remove(kept(1))

    assert files.read() == ([], [])
    found = {len(NoticeFiles(FOLDER, survivor).read()[0]) for survivor in disk.prefixes()}
    assert found <= {0, 1}


def test_what_is_not_ours_stays_and_what_is_damaged_goes(tmp_path: Path) -> None:
    files = NoticeFiles(str(tmp_path), RealDisk())
    files.write(kept(1))
    name = next(tmp_path.iterdir()).name
    (tmp_path / "README").write_text("mine")
    (tmp_path / "other.new").write_text("mine")
    (tmp_path / f"{notice_id(2, '00000000')}.{KEY}").write_text("{")
    (tmp_path / f"{notice_id(3, '00000000')}.{KEY}").write_bytes(kept(1).notice.content)
    (tmp_path / f"{notice_id(4, '00000000')}.{KEY}.new").write_text("{")

    found, unread = files.read()

    assert found == [kept(1)]
    assert len(unread) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README", name, "other.new"]


def test_the_headroom_of_new_mail_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    monkeypatch.setattr(disk, "free", lambda _: (HEADROOM_BYTES, None))

    with pytest.raises(NoHeadroom):
        NoticeFiles(str(tmp_path / "n"), disk).write(kept(1))

    assert list((tmp_path / "n").iterdir()) == []
