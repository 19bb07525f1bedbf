"""How the policy and what it names are opened, and what the kernel says of who writes them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay.policy.named_file import Writing, open_regular, read_regular, writing
from tests.fakes.odd_files import ODD_FILES

NOBODY = 65534


def asked(path: Path) -> Writing:
    descriptor = open_regular(path)
    try:
        return writing(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("kind", ["a FIFO", "a folder", "a device"])
def test_only_a_regular_file_is_opened(kind: str, tmp_path: Path) -> None:
    ODD_FILES[kind](tmp_path / "odd")
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        read_regular(tmp_path / "odd", 10)


def test_no_more_is_read_than_tells_that_it_is_too_much(tmp_path: Path) -> None:
    ODD_FILES["an endless file"](tmp_path / "endless")
    assert len(read_regular(tmp_path / "endless", 100_000)) == 100_001
    with pytest.raises(OSError, match="larger than 100000 bytes"):
        open_regular(tmp_path / "endless", most_bytes=100_000)


def test_a_file_is_being_written_until_its_last_writer_closes_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w"), path.open():
        with path.open("a"):
            assert asked(path) is Writing.OPEN
        assert asked(path) is Writing.OPEN
    with path.open():
        assert asked(path) is Writing.CLOSED


def test_where_writers_may_be_unseen_nothing_is_known() -> None:
    """/proc stands for every file system whose leases do not speak for all its writers, such as NFS."""
    assert asked(Path("/proc/version")) is Writing.UNKNOWN


def test_of_another_users_file_nothing_is_known() -> None:
    child = os.fork()
    if child == 0:
        found = None
        try:
            if os.geteuid() == 0:
                os.setresuid(NOBODY, NOBODY, NOBODY)
            found = asked(Path("/etc/passwd"))
        finally:
            os._exit(0 if found is Writing.UNKNOWN else 1)

    assert os.waitpid(child, 0)[1] == 0


OPENS_AND_CLOSES = """
import os, sys
print(flush=True)
while True:
    os.close(os.open(sys.argv[1], os.O_WRONLY))
"""


def test_asking_disturbs_no_writer_and_ends_nobody(tmp_path: Path) -> None:
    """A writer that opens the file at that moment has the kernel send us a signal."""
    path = tmp_path / "file"
    path.touch()
    with subprocess.Popen(
        [sys.executable, "-c", OPENS_AND_CLOSES, str(path)], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        found = {asked(path) for _ in range(50_000)}
        is_at_it = writer.poll() is None
        writer.kill()

    assert is_at_it
    assert found == {Writing.OPEN, Writing.CLOSED}
