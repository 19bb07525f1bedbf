"""A hook that is a command: a real program."""

import json
import stat
from pathlib import Path

import pytest

from tests.unit.hooks.receiving import Telling, policy_with


def program(folder: Path, text: str) -> str:
    path = folder / "tell"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return "tell"


async def test_a_program_gets_the_notice_on_stdin(tmp_path: Path) -> None:
    command = program(tmp_path, f'cat > {tmp_path}/got; echo "$*" > {tmp_path}/arguments')
    telling = Telling(policy_with(tmp_path, {"command": [command, "$HOME; true", "b"]}))
    await telling.hooks.start()

    telling.events.upstream_paused(upstream="isp", reason="421 too much", until_at_ns=None)
    await telling.until(lambda: telling.count("relay_notices_total", result="sent") == 1)
    await telling.hooks.close()

    told = json.loads((tmp_path / "got").read_bytes())
    assert (told["event"], told["reason"]) == ("paused", "421 too much")
    assert (tmp_path / "arguments").read_text() == "$HOME; true b\n"
    assert telling.kept() == []


async def test_a_program_sees_none_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISP_PASSWORD", "hunter2")
    telling = Telling(policy_with(tmp_path, {"command": [program(tmp_path, f"env > {tmp_path}/got")]}))
    await telling.hooks.start()

    telling.resume()
    await telling.until(lambda: telling.count("relay_notices_total", result="sent") == 1)
    await telling.hooks.close()

    assert "hunter2" not in (tmp_path / "got").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exit 3", "exit status 3"),
        ("kill -9 $$", "killed by signal 9"),
        ("exec sleep 1000", "no answer within 0.2s"),
        ("sleep 1000", "no answer within 0.2s"),
    ],
)
async def test_a_program_that_fails_is_told_of_and_run_again(tmp_path: Path, text: str, said: str) -> None:
    telling = Telling(
        policy_with(tmp_path, {"command": [program(tmp_path, text)], "timeout": "200ms"}),
    )
    await telling.hooks.start()

    telling.resume()
    await telling.until(lambda: telling.count("relay_notice_failures_total") == 1)
    await telling.hooks.close()

    assert said in telling.said
    assert len(telling.kept()) == 1
