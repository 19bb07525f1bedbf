"""The file of a refresh token.  tests/engines/spool/test_durable cuts the power of its replacement."""

from pathlib import Path

from relay.sender.connections import read_refresh_token, write_refresh_token
from relay.spool.disk.durable import RealDisk

OLD, NEW, OTHERS = "old-refresh-token", "a-new-and-longer-refresh-token", "by-hand"


def test_only_the_owner_reads_the_file_and_no_other_writers_token_is_replaced(tmp_path: Path) -> None:
    path, disk = tmp_path / "m365", RealDisk()
    write_refresh_token(path, disk, OLD)
    # Once more, as after a failed sync of the new token.
    for _ in range(2):
        assert write_refresh_token(path, disk, NEW, old=OLD)

    assert path.read_text() == f"{NEW}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m365", "m365.lock"]
    write_refresh_token(path, disk, OTHERS)
    assert not write_refresh_token(path, disk, NEW, old=OLD)
    assert read_refresh_token(path, disk) == OTHERS
