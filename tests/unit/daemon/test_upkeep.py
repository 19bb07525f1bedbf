"""What must go on around the sender: taking mail, keeping listeners, watching the policy."""

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from relay.clock import SystemClock
from relay.daemon.listening import Listening, Start
from relay.daemon.policy_watch import SETTLE_SECONDS, PolicyWatch, Waiting
from relay.daemon.spool_intake import SpoolIntake, spool_intake
from relay.mail.envelope import Envelope
from relay.policy.faults import PolicyError
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.sender.host import Host
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import prepare
from relay.spool.root.trigger import Trigger
from relay.telemetry.listener_counts import ListenerCounts
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of


class SlowDisk(RealDisk):
    """A disk whose first write, or first sync, waits for the test."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.slow = slow
        self.is_at_it = threading.Event()
        self.may_go_on = threading.Event()

    def _wait(self, what: str) -> None:
        if what == self.slow:
            self.slow = ""
            self.is_at_it.set()
            self.may_go_on.wait()

    def write_all(self, fd: int, content: bytes) -> None:
        self._wait("write")
        super().write_all(fd, content)

    def sync_each(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        self._wait("sync")
        return super().sync_each(fds, content_only=content_only)


def intake_on(disk: RealDisk, root: Path) -> SpoolIntake:
    prepare(str(root), RealDisk())
    return SpoolIntake(MaildirIntake(str(root), disk, SystemClock()), Trigger(str(root), disk))


async def cancel(call: "asyncio.Task[None]", disk: SlowDisk) -> None:
    """Cancel a call whose thread is at the disk, as the end of a client's session does."""
    await asyncio.to_thread(disk.is_at_it.wait)
    call.cancel()
    await asyncio.sleep(0)
    disk.may_go_on.set()
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled()


def open_files(root: Path) -> list[str]:
    folder = Path("/proc/self/fd")
    return [str(fd.readlink()) for fd in folder.iterdir() if fd.is_symlink() and str(root) in os.readlink(fd)]  # noqa: PTH115 - may be gone


async def test_a_draft_whose_client_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = SlowDisk("write")
    intake = intake_on(disk, tmp_path)
    draft = intake.draft()
    draft.append(CONTENT)
    await cancel(asyncio.create_task(intake.spill(draft)), disk)
    await intake.discard(draft)

    assert list((tmp_path / "tmp").iterdir()) == []
    assert [path for path in open_files(tmp_path) if "/tmp/" + draft.queue_id in path] == []
    intake.close()


async def test_a_message_whose_client_goes_is_stored_whole(tmp_path: Path) -> None:
    disk = SlowDisk("sync")
    intake = intake_on(disk, tmp_path)
    draft, other = intake.draft(), intake.draft()
    envelope = Envelope("a@x.example", ("b@x.example",), 0, "unknown[127.0.0.1]", "here", "ESMTP")
    draft.append(CONTENT)
    other.append(CONTENT)
    storing = asyncio.create_task(intake.accept(draft, envelope))
    also = asyncio.create_task(intake.accept(other, envelope))
    await cancel(storing, disk)
    await also

    assert {path.name for path in (tmp_path / "new").iterdir()} == {draft.queue_id, other.queue_id}
    intake.close()


async def test_a_listener_process_that_cannot_start_is_tried_again(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 25)
    (listen,) = policy.listen
    policy = policy.model_copy(update={"listen": (listen.model_copy(update={"processes": 1}),)})
    relay = Relay(policy)
    listening = Listening(
        Start(tmp_path / "policy.yaml", b"", policy, "relay.test", "text", str(tmp_path / "no-python-here")),
        spool_intake(policy, Host(SystemClock(), RealDisk()), relay.events),
        relay.events,
        ListenerCounts([]),
        1024,
        restart_first_seconds=0.001,
    )
    await listening.bind()
    await listening.start()

    def has_tried_twice() -> bool:
        relay.events.flush()
        return relay.log.getvalue().count("fault in listener") >= 2

    await relay.until(has_tried_twice)
    await listening.close()
    await relay.sender.stop()
    relay.trigger.close()


class Edited:
    """What a `PolicyWatch` told."""

    def __init__(self) -> None:
        self.policies: list[Policy] = []
        self.refusals: list[PolicyError] = []
        self.has_told = asyncio.Event()

    def file(self, path: Path) -> PolicyWatch:
        in_force = parse_policy(policy_text("").encode(), path)
        return PolicyWatch(path, in_force, b"another", self, SystemClock())

    def refuse(self, error: PolicyError) -> None:
        self.refusals.append(error)

    def wait(self, waiting: Waiting | None) -> None:
        assert waiting is None

    async def apply(self, policy: Policy, _sha256: str) -> None:
        self.policies.append(policy)
        self.has_told.set()

    async def hold(self, policy: Policy) -> None:
        raise AssertionError(f"no edit here has to rest: {policy}")


def policy_text(limits: str) -> str:
    return f"""
spool: ./spool
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams: {{isp: {{host: 127.0.0.1, port: 25, tls: none{limits}}}}}
"""


def test_half_of_an_edit_is_never_in_force(tmp_path: Path) -> None:
    """The first half is a policy as well, one without limits."""
    path, edited = tmp_path / "policy.yaml", Edited()
    path.write_text(policy_text(""))
    whole = policy_text(", limits: [{messages: 1, per: 1h}]")

    async def look() -> None:
        asyncio.get_running_loop().call_later(SETTLE_SECONDS / 2, path.write_text, whole)
        await edited.file(path).look(is_asked=False)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(look())

    assert [len(policy.upstreams["isp"].limits) for policy in edited.policies] == [1]
    assert edited.refusals == []
