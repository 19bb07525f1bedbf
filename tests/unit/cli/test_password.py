"""`relay hash-password`: a line for a users_file, and the password nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from relay.policy.secrets import read_users
from tests.unit.cli.terminal import forked


def test_the_line_is_a_user_of_a_users_file(tmp_path: Path) -> None:
    ran = forked("hash-password", "ann@example.net", given="pässwörd\n".encode())
    assert (ran.returncode, ran.stderr) == (0, b"")
    (users := tmp_path / "users").touch(0o600)
    users.write_bytes(ran.stdout)
    ((name, hashed),) = read_users(users).items()
    assert name == "ann@example.net"
    assert PasswordHasher().verify(hashed, "pässwörd")
    alone = forked("hash-password", given=b"hunter2").stdout.decode()
    assert PasswordHasher().verify(alone.strip(), "hunter2")


@pytest.mark.parametrize(
    ("name", "password"),
    [
        *(("ann", password) for password in (b"", b"\n", b"hunter2\nhunter2\n", b"hun\0ter2", b"x" * 7000)),
        *((name, b"hunter2\n") for name in ("", "a:b", "#a", " a", "a\nb")),
    ],
)
def test_what_sasl_or_a_users_file_cannot_carry_exits_64(name: str, password: bytes) -> None:
    ran = forked("hash-password", name, given=password)
    assert (ran.returncode, ran.stdout) == (os.EX_USAGE, b"")
    assert b"hunter2" not in ran.stderr


def test_a_terminal_is_asked_twice_and_shows_nothing() -> None:
    ours, theirs = os.openpty()
    # A session of its own: getpass must find this terminal, and not the one of whoever runs the test.
    with subprocess.Popen(
        [sys.executable, "-m", "relay", "hash-password", "ann"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as ran:
        os.close(theirs)
        seen = b""
        for prompt in (b"Password: ", b"confirmation: "):
            # Answered only once it is asked: echo is off by then.
            while not seen.endswith(prompt):
                seen += os.read(ours, 1024)
            os.write(ours, b"hunter2\n")
        while b"\nann:$argon2id$" not in seen:
            seen += os.read(ours, 1024)
    os.close(ours)
    assert ran.returncode == 0
    assert b"hunter2" not in seen
