"""A start with a long queue on a slow disk: the service manager is told that it goes on, sd_notify(3)."""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.clock import SECOND_NS, SystemClock
from relay.daemon.notify import EXTENSION_SECONDS, TELL_NS, Recovering
from relay.mail.envelope import Envelope
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import prepare
from tests.fakes.clock import LeapingClock
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of

PROJECT = Path(__file__).parents[3]
HANG_SECONDS = 120.0


class SlowDisk(RealDisk):
    """Takes a second for each message that is opened, by the clock that the relay reads."""

    def __init__(self, clock: LeapingClock) -> None:
        super().__init__()
        self._clock = clock

    def open_update(self, path: str) -> int:
        self._clock.ahead_ns += SECOND_NS
        return super().open_update(path)


class ServiceManager:
    """Takes what it is told, message by message: a socket alone keeps no more than ten."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._heard: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        self._path = str(path)

    def next(self) -> dict[str, str]:
        """Return the next message, which may be still to come."""
        return self._heard.get(timeout=HANG_SECONDS)

    def so_far(self) -> list[dict[str, str]]:
        """Return all that was sent by now."""
        self._tell("SO_FAR=1")
        return list(iter(self.next, {"SO_FAR": "1"}))

    def close(self) -> None:
        self._tell("")
        self._thread.join()
        self._socket.close()

    def _tell(self, line: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(line.encode(), self._path)

    def _listen(self) -> None:
        while lines := self._socket.recv(4096).decode().splitlines():
            self._heard.put(dict(line.split("=", 1) for line in lines))


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceManager]:
    """Be the service manager."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with contextlib.closing(ServiceManager(tmp_path / "notify")) as manager:
        yield manager


def fill(spool: Path, count: int) -> None:
    """Queue messages as a listener does."""
    prepare(str(spool), RealDisk())
    intake = MaildirIntake(str(spool), RealDisk(), SystemClock())
    drafts = []
    for number in range(count):
        draft = intake.draft()
        draft.append(CONTENT)
        arrival_at_ns = SystemClock().wall_ns()
        drafts.append(
            (draft, Envelope("a@here.example", (f"b{number}@there.example",), arrival_at_ns, "", "", ""))
        )
    assert intake.accept(drafts) == [None] * count


def steps(message: dict[str, str]) -> int:
    return int(message["STATUS"].removeprefix("recovering: ").removesuffix(" steps done"))


async def test_a_start_asks_for_time_as_long_as_it_goes_on(tmp_path: Path, told: ServiceManager) -> None:
    clock = LeapingClock()
    policy = policy_of(tmp_path, 1)
    fill(Path(policy.spool), 400)
    relay = Relay(policy, SlowDisk(clock), clock)

    await relay.sender.read(Recovering(clock))

    messages = told.so_far()
    assert len(relay.sender.queue) == 400
    assert {message["EXTEND_TIMEOUT_USEC"] for message in messages} == {str(EXTENSION_SECONDS * 1_000_000)}
    done = [steps(message) for message in messages]
    # A message is opened in each step at most once, so no more seconds pass than steps are done.
    gaps = [after - before for before, after in zip([0, *done], [*done, 400], strict=True)]
    assert max(gaps) < EXTENSION_SECONDS
    assert len(done) <= 2 + 800 * SECOND_NS // TELL_NS
    await relay.sender.stop()


async def test_a_start_that_is_told_to_stop_asks_for_no_more_time(
    tmp_path: Path, told: ServiceManager
) -> None:
    clock = LeapingClock()
    policy = policy_of(tmp_path, 1)
    fill(Path(policy.spool), 20)
    recovering = Recovering(clock)
    recovering()
    recovering.end()
    relay = Relay(policy, SlowDisk(clock), clock)

    await relay.sender.read(recovering)

    assert len(told.so_far()) == 1
    await relay.sender.stop()


def test_a_real_relay_asks_for_time_until_it_is_ready(tmp_path: Path, told: ServiceManager) -> None:
    fill(tmp_path / "spool", 300)
    (tmp_path / "policy.yaml").write_text(
        'spool: ./spool\nhostname: relay.test\nlisten: [{address: "127.0.0.1:0", clients: [127.0.0.0/8]}]\n'
        "upstreams:\n  isp: {host: 127.0.0.1, port: 1, tls: none}\n"
    )
    command = [sys.executable, "-m", "relay", "run", "--policy", str(tmp_path / "policy.yaml")]
    with subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.DEVNULL, env=os.environ) as relay:
        before: list[dict[str, str]] = []
        while "READY" not in (message := told.next()):
            before.append(message)
        relay.send_signal(signal.SIGTERM)
        after = [told.next()]
        while "STOPPING" not in after[-1]:
            after.append(told.next())
        assert relay.wait(HANG_SECONDS) == 0

    assert before
    assert all(message.keys() == {"EXTEND_TIMEOUT_USEC", "STATUS"} for message in before)
    assert steps(before[0]) >= 1
    assert not any("EXTEND_TIMEOUT_USEC" in message for message in after[:-1])
    assert int(after[-1]["EXTEND_TIMEOUT_USEC"]) > 60 * 1_000_000
    assert after[-1]["STATUS"] == "stopping: 0 transactions in flight"


def test_a_disk_that_gives_no_answer_asks_for_no_time(told: ServiceManager) -> None:
    clock = LeapingClock()
    recovering = Recovering(clock)
    recovering()
    clock.ahead_ns += 3600 * SECOND_NS

    assert len(told.so_far()) == 1
    recovering()
    assert len(told.so_far()) == 1


def test_a_manager_that_reads_nothing_does_not_stop_the_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LeapingClock()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "deaf"))
        recovering = Recovering(clock)
        for _ in range(2000):
            recovering()
            clock.ahead_ns += TELL_NS
