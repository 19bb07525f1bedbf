"""What a test needs from the machine: a test that lacks it is skipped with the reason, or fails in CI."""

import os
import shutil

import pytest

DEBIAN_PACKAGES = {
    "dovecot": "dovecot-core",
    "ip": "iproute2",
    "mkfs.btrfs": "btrfs-progs",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "promtool": "prometheus",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "smtp-sink": "postfix",
    "smtp-source": "postfix",
    "systemd-analyze": "systemd",
    "tc": "iproute2",
    "umount": "mount",
    "unshare": "util-linux",
}
"""The package of a program, unless it has the program's name."""


def missing_program(*programs: str) -> str | None:
    """Return why these programs cannot be used, with the command that installs them, or None."""
    absent = [program for program in programs if find(program) is None]
    if not absent:
        return None
    packages = " ".join(sorted({DEBIAN_PACKAGES.get(program, program) for program in absent}))
    return f"no {', '.join(absent)} here: apt install {packages}"


def find(program: str) -> str | None:
    """Return the path of a program, also one in /usr/sbin, which only root may have in PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def demand(*reasons: str | None) -> None:
    """Skip the test for the first reason that is not None; fail it under `RELAY_REQUIRE_PEERS=1`."""
    for reason in reasons:
        if reason is None:
            continue
        if os.environ.get("RELAY_REQUIRE_PEERS") == "1":
            pytest.fail(f"RELAY_REQUIRE_PEERS=1, but {reason}")
        pytest.skip(reason)
