"""A history that somebody else wrote, or may have written, frees no slot: nothing is sent on it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.spool.disk.durable import RealDisk
from relay.throttle.history import History
from relay.throttle.history_check import history_findings
from relay.throttle.history_format import HistoryError
from relay.throttle.slots import Slots

SOMEBODY_ELSE = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")


def a_history(path: Path) -> History:
    return History(path, RealDisk(), SystemClock(), Slots())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        pytest.param(lambda path: os.chown(path, SOMEBODY_ELSE, -1), "belongs to user 12345", marks=as_root),
        (lambda path: path.chmod(0o666), "mode 0666: others may write it"),
        (lambda path: path.chmod(0o660), "mode 0660: others may write it"),
    ],
)
def test_a_wrong_owner_or_mode_stops_until_it_is_put_right(
    tmp_path: Path, change: Callable[[Path], None], fault: str
) -> None:
    path = tmp_path / "isp"
    history = a_history(path)
    with history.locked() as now_ns:
        history.append(now_ns, [])
    history.close()
    content = path.read_bytes()
    change(path)

    (finding,) = history_findings(path, RealDisk(), SystemClock(), os.geteuid())
    assert finding.what.startswith(fault)
    assert (finding.kind, finding.is_damage) == ("owner", True)
    history = a_history(path)
    for _ in range(2):
        with pytest.raises(HistoryError, match=f"isp: {fault}.*nothing is sent"), history.locked():
            raise AssertionError
    assert path.read_bytes() == content

    os.chown(path, os.geteuid(), -1)
    path.chmod(0o600)
    with history.locked() as now_ns:
        history.append(now_ns, [])
    history.close()
