"""`relay demo`: it passes where all went well, fails where it did not, and leaves nothing behind."""

import contextlib
import io
import os
import re
import signal
import smtplib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from relay.cli.demo import (
    Demo,
    DemoPlan,
    Frame,
    Judgement,
    NotFinished,
    Picture,
    judge,
    reserved_port,
    verdict_lines,
)
from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope
from relay.policy.limits import LimitSettings
from relay.practice.witness import Sighting, Witness, Witnessed
from relay.status.snapshot import QueueCounts, QueueState
from tests.fakes.snapshots import a_limit, a_snapshot, an_upstream
from tests.unit.cli.control import code_of

HANG_S = 120
COLUMNS = 80


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a demo whose temporary files are in a folder."""
    command = [sys.executable, "-m", "relay", "demo", *arguments]
    with subprocess.Popen(
        command,
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        try:
            yield demo
        finally:
            # A demo that did not end as it should still takes its relay with it.
            if demo.poll() is None:
                demo.terminate()


def wait_for_frame(demo: "subprocess.Popen[str]", pattern: str = " window ") -> None:
    """Return once the relay runs and a frame shows this."""
    assert demo.stdout is not None
    said = []
    for line in demo.stdout:
        said.append(line)
        if re.search(pattern, words(line)):
            return
    raise AssertionError("no such frame, but:\n" + "".join(said))


def relay_of(demo: "subprocess.Popen[str]") -> int:
    """Return the pid of the relay that a demo started."""
    (pid,) = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
    return int(pid)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def words(line: str) -> str:
    return " ".join(line.split())


def test_the_upstream_gets_everything_and_refuses_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--messages", "5", "--limit", "3", "--per", "1s") as demo:
        out, _ = demo.communicate(timeout=HANG_S)

    lines = [words(line) for line in out.splitlines()]
    assert demo.returncode == 0, out
    assert "A practice upstream allows 3 messages per 1s, and cuts off whoever sends more." in lines
    assert "most in any 1s 3 of 3 allowed ok" in lines
    assert "refused 0 ok" in lines
    assert "relayed 5 of 5, each once ok" in lines
    assert "PASSED" in lines
    assert "make run" in lines[-1]
    (taken_s,) = re.findall(r"(?m)^  time +([0-9.]+)s from first to last; the ideal is 1\.0s$", out)
    assert float(taken_s) >= 1.0
    assert any(re.search(r" window .* waiting .* relayed 5/5$", line) for line in lines)
    assert all(len(line) <= COLUMNS for line in out.splitlines() if str(tmp_path) not in line)
    assert list(tmp_path.iterdir()) == []


def test_whoever_else_uses_up_the_account_makes_it_fail(tmp_path: Path) -> None:
    with running(tmp_path, "--messages", "50", "--limit", "1", "--per", "2s") as demo:
        wait_for_frame(demo)
        (folder,) = tmp_path.iterdir()
        account = yaml.safe_load((folder / "policy.yaml").read_text())["upstreams"]["practice"]
        password_path = folder / account["auth"]["password_file"]
        assert password_path.stat().st_mode & 0o777 == 0o600
        with smtplib.SMTP(account["host"], account["port"]) as rival:
            rival.login(account["auth"]["user"], password_path.read_text().rstrip("\n"))
            # Which of the two is one too many is up to the upstream.
            with contextlib.suppress(smtplib.SMTPResponseException, smtplib.SMTPServerDisconnected):
                for number in range(2):
                    rival.sendmail("rival@example.org", [f"{number}@example.net"], "Subject: me first\n\n")
        out, _ = demo.communicate(timeout=HANG_S)

    assert demo.returncode == 1, out
    assert re.search(r"(?m)^  most in any 2s +[2-9] of 1 allowed +NOT OK$", out), out
    assert re.search(r"(?m)^  refused +[1-9] +NOT OK$", out), out
    assert "FAILED: the upstream refused a message: 550 5.7.1" in out
    assert list(tmp_path.iterdir()) == []


def test_a_relay_that_dies_makes_it_fail(tmp_path: Path) -> None:
    with running(tmp_path, "--messages", "2", "--limit", "1", "--per", "10s") as demo:
        wait_for_frame(demo, r"waiting 1 .* relayed 1/2$")
        os.kill(relay_of(demo), signal.SIGKILL)
        out, _ = demo.communicate(timeout=HANG_S)

    assert demo.returncode == 1, out
    assert re.search(r"(?m)^  relayed +1 of 2, each once +NOT OK$", out), out
    assert "FAILED: the relay ended by signal 9; it said last:" in out
    assert list(tmp_path.iterdir()) == []


async def test_a_relay_that_takes_no_mail_is_told_of() -> None:
    with reserved_port() as port, pytest.raises(NotFinished, match=r"did not take a message: .*Errno 111"):
        await Demo(a_plan())._hand_in(port)


def test_a_reserved_port_is_given_to_whoever_listens_first() -> None:
    with (
        reserved_port() as port,
        socket.create_server(("127.0.0.1", port)) as server,
        socket.create_connection(("127.0.0.1", port)) as client,
        server.accept()[0] as taken,
    ):
        client.sendall(b"x")
        assert taken.recv(1) == b"x"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_its_relay(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path, "--messages", "50", "--limit", "1", "--per", "10s") as demo:
        wait_for_frame(demo)
        relay = relay_of(demo)
        demo.send_signal(number)
        out, _ = demo.communicate(timeout=HANG_S)

    assert demo.returncode == 128 + number, out
    assert "Traceback" not in out
    assert not is_there(relay)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["--per", "5"], ["--per", "0s"], ["--limit", "0"], ["--messages", "0"], ["extra"]]
)
def test_a_wrong_call_is_64(arguments: list[str]) -> None:
    assert code_of("demo", *arguments) == os.EX_USAGE


def a_plan(*, messages: int = 3, count: int = 2, per: str = "1s") -> DemoPlan:
    return DemoPlan(messages, LimitSettings.model_validate({"messages": count, "per": per}), per)


def a_ledger(plan: DemoPlan, instants_ns: Sequence[int], numbers: Sequence[int] | None = None) -> Witness:
    """Return a ledger that saw a message at each instant; `numbers` tells which message it was."""
    ledger = Witness(plan.limit, plan.limit.per_ns, remember=1000)
    for number, at_ns in zip(numbers or range(len(instants_ns)), instants_ns, strict=True):
        envelope = Envelope("a@example.org", (f"{number}@example.com",), 0, "client", "helo", "ESMTPA", None)
        fate = Witnessed.RELAYED if ledger.admit(at_ns, 1, at_ns) else Witnessed.REFUSED
        ledger.enter(Sighting(at_ns, envelope, 1, "", "", fate))
    return ledger


def is_right(judgement: Judgement) -> list[bool | None]:
    return [is_right for _, is_right in verdict_lines(judgement)]


def test_a_ledger_that_is_full_to_the_limit_is_good() -> None:
    plan = a_plan()

    judgement = judge(plan, a_ledger(plan, [0, 1, SECOND_NS]))

    assert judgement == Judgement(plan, most=2, relayed=3, repeated=0, refused=0, taken_ns=SECOND_NS)
    assert judgement.is_good
    assert is_right(judgement) == [True, True, True, None]


def test_one_too_many_in_a_window_is_not_good() -> None:
    plan = a_plan()

    judgement = judge(plan, a_ledger(plan, [0, 1, SECOND_NS - 1]))

    assert (judgement.most, judgement.refused, judgement.relayed) == (3, 1, 2)
    assert not judgement.is_good
    assert is_right(judgement) == [False, False, False, None]


@pytest.mark.parametrize(
    ("numbers", "shown"), [([1, 2], "2 of 3, each once"), ([1, 2, 3, 3], "1 of them twice")]
)
def test_a_message_too_few_or_twice_is_not_good(numbers: list[int], shown: str) -> None:
    plan = a_plan()

    judgement = judge(plan, a_ledger(plan, [n * SECOND_NS for n in range(len(numbers))], numbers))

    assert judgement.refused == 0
    assert not judgement.is_good
    assert is_right(judgement) == [True, True, False, None]
    assert shown in verdict_lines(judgement)[2][0]


def test_an_upstream_that_saw_nothing_is_not_good() -> None:
    plan = a_plan()

    assert not judge(plan, a_ledger(plan, [])).is_good


@given(messages=st.integers(1, 40), count=st.integers(1, 12))
def test_the_ideal_is_the_shortest_that_a_strict_upstream_takes(messages: int, count: int) -> None:
    plan = a_plan(messages=messages, count=count)
    at_best_ns = [number // count * SECOND_NS for number in range(messages)]

    ideal = judge(plan, a_ledger(plan, at_best_ns))

    assert ideal.is_good
    assert ideal.taken_ns == plan.ideal_ns
    if plan.ideal_ns:
        assert not judge(plan, a_ledger(plan, [*at_best_ns[:-1], at_best_ns[-1] - 1])).is_good


COUNTS = st.integers(0, 1000)


@st.composite
def frames(draw: st.DrawFn, plan: DemoPlan) -> Frame:
    opens_in_s = draw(st.none() | st.integers(0, 3600))
    limit = a_limit(used=draw(COUNTS), count=plan.limit.count, opens_in_s=opens_in_s)
    queue = {
        state: QueueCounts(messages=draw(COUNTS)) for state in draw(st.sets(st.sampled_from(QueueState)))
    }
    return Frame(
        elapsed_ns=draw(st.integers(0, 3600)) * SECOND_NS,
        snapshot=replace(a_snapshot(upstream=an_upstream(limits=(limit,))), queue=queue),
        relayed=draw(COUNTS),
        refused=draw(COUNTS),
        most=draw(COUNTS),
        pace=draw(st.lists(COUNTS, max_size=200)),
    )


@given(
    plan=st.builds(a_plan, messages=st.integers(1, 1000), count=st.integers(1, 1000)),
    encoding=st.sampled_from(["utf-8", "ascii"]),
    draw=st.data(),
)
def test_every_frame_fits_into_80_columns(plan: DemoPlan, encoding: str, draw: st.DataObject) -> None:
    rows = painted(plan, draw.draw(frames(plan)), encoding)

    assert [row.split()[0] for row in rows] == ["window", "queue", "relayed", "upstream", "pace", "time"]
    assert all(len(row.rstrip()) <= COLUMNS for row in rows)


def test_a_frame_before_the_relay_tells_anything_is_empty() -> None:
    rows = painted(a_plan(), Frame(0, None, 0, 0, 0, [0]), "utf-8")

    assert rows[0].split()[-1] == "starting"
    assert not any("█" in row for row in rows)


def painted(plan: DemoPlan, frame: Frame, encoding: str) -> list[str]:
    """Return the rows of one frame as a terminal of 80 columns gets them, without colours."""
    terminal = io.BytesIO()
    with io.TextIOWrapper(terminal, encoding=encoding, write_through=True) as stream:
        out = Console(
            file=stream, force_terminal=True, width=COLUMNS, height=24, _environ={"TERM": "xterm-256color"}
        )
        with (picture := Picture(plan, out)).shown():
            terminal.truncate(0)
            terminal.seek(0)
            picture.show(frame)
            seen = terminal.getvalue().decode(encoding)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen).replace("\r", "").split("\n")
