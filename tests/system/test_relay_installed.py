"""`make install` into a folder (DESTDIR), as packagers and administrators use it."""

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest

from tests.system.demand import demand, missing_program
from tests.system.relay import PROJECT

pytestmark = pytest.mark.full


def _install(root: Path) -> None:
    command = ["make", "-s", "install", f"DESTDIR={root}", "PYTHON=/usr/bin/python3"]
    subprocess.run(command, cwd=PROJECT, check=True, timeout=600)


def test_an_installed_tree_runs_and_names_no_path_of_its_build(tmp_path: Path) -> None:
    demand(missing_program("systemd-analyze", "mandoc"))
    root = tmp_path / "root"
    edited = root / "etc" / "relay" / "policy.yaml"
    edited.parent.mkdir(parents=True)
    edited.write_text((PROJECT / "deploy" / "policy.yaml").read_text() + "# edited\n")
    _install(root)
    program = root / "usr" / "bin" / "relay"
    python = root / "usr" / "lib" / "relay" / "bin" / "python"
    asked = [str(python), "-I", str(program)]

    version = subprocess.run([*asked, "--version"], capture_output=True, text=True, check=True).stdout
    bare = {"PATH": "/usr/bin:/bin", "CREDENTIALS_DIRECTORY": ""}
    checked = subprocess.run(
        [*asked, "check", str(edited)],
        capture_output=True, text=True, env=bare, check=False,
    )  # fmt: skip
    unit = (root / "usr" / "lib" / "systemd" / "system" / "relay.service").read_text()
    named = subprocess.run(
        ["grep", "-rlF", str(root), str(root)], capture_output=True, text=True, check=False
    )

    assert edited.read_text().endswith("# edited\n"), "a policy that is there is left as it is"
    assert version == f"relay {importlib.metadata.version('relay-smarthost')}\n"
    assert checked.returncode == 0, checked.stderr
    assert program.read_text().startswith("#!/usr/lib/relay/bin/python -I\n")
    assert named.stdout == ""
    assert "\nExecStart=/usr/bin/relay run --policy /etc/relay/policy.yaml\n" in unit
    assert "/opt/relay" not in unit
    verified = tmp_path / "relay.service"
    verified.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={python}", unit))
    judged = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(verified)], capture_output=True, text=True, check=False
    )
    assert (judged.returncode, judged.stderr) == (0, "")
    share = root / "usr" / "share"
    for name in (
        "man/man8/relay.8", "man/man5/relay-policy.5", "bash-completion/completions/relay",
        "zsh/vendor-completions/_relay", "fish/vendor_completions.d/relay.fish", "doc/relay/CHANGELOG.md",
    ):  # fmt: skip
        assert (share / name).is_file(), name
