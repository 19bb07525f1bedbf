"""What waits for hooks is bounded, and goes by the policy in force."""

from pathlib import Path

from relay.spool.disk.durable import RealDisk
from relay.spool.root.headroom import HEADROOM_BYTES
from tests.unit.hooks.receiving import HttpReceiver, Telling, policy_with


class FullDisk(RealDisk):
    """A disk without room for a notice."""

    def free(self, _path: str) -> tuple[int, int | None]:
        return HEADROOM_BYTES, None


async def test_the_oldest_go_first_and_are_counted(tmp_path: Path) -> None:
    telling = Telling(policy_with(tmp_path, {"command": ["/bin/false"]}), most=3)
    await telling.hooks.start()

    for name in "abcde":
        telling.resume(name)
    await telling.until(lambda: telling.count("relay_notices_waiting") == 3)
    await telling.hooks.close()

    assert telling.count("relay_notices_total", result="dropped") == 2
    assert "too many wait" in telling.said
    assert len(telling.kept()) == 3


async def test_only_the_events_of_a_hook_are_told(tmp_path: Path) -> None:
    receiver = HttpReceiver()
    async with receiver.listening():
        telling = Telling(policy_with(tmp_path, {"url": receiver.url, "events": ["stopped"]}))
        await telling.hooks.start()
        telling.resume()
        telling.events.upstream_stopped(upstream="isp", reason="535 no")
        await telling.until(lambda: telling.count("relay_notices_total", result="sent") == 1)
        await telling.hooks.close()

    assert [post.told["event"] for post in receiver.posts] == ["stopped"]


async def test_an_edit_adds_a_hook_and_drops_what_waits_for_another(tmp_path: Path) -> None:
    receiver = HttpReceiver()
    async with receiver.listening():
        telling = Telling(policy_with(tmp_path, {"command": ["/bin/false"]}))
        await telling.hooks.start()
        telling.resume()
        await telling.until(lambda: telling.count("relay_notice_failures_total") == 1)

        await telling.hooks.use(policy_with(tmp_path, {"url": receiver.url}))
        telling.resume("new")
        await telling.until(lambda: telling.count("relay_notices_total", result="sent") == 1)
        await telling.hooks.close()

    assert [post.told["upstream"] for post in receiver.posts] == ["new"]
    assert telling.count("relay_notices_total", result="dropped") == 1
    assert "left the policy" in telling.said
    assert telling.kept() == []


async def test_without_room_on_the_disk_a_notice_is_told_from_memory(tmp_path: Path) -> None:
    receiver = HttpReceiver()
    async with receiver.listening():
        telling = Telling(policy_with(tmp_path, {"url": receiver.url}), disk=FullDisk())
        await telling.hooks.start()
        telling.resume("a")
        telling.resume("b")
        await telling.until(lambda: telling.count("relay_notices_total", result="sent") == 2)
        await telling.hooks.close()

    assert telling.said.count("notices are not kept on disk") == 1
    assert telling.kept() == []
