"""The heart never misses its next beat: whatever it waits for, something wakes it."""

import errno
from pathlib import Path

from relay.spool.durable import RealDisk
from tests.fakes.smarthost import Script, Smarthost
from tests.service.house import House, policy_of


class ShortOfDescriptors(RealDisk):
    """A disk on which the file of a queued message cannot be opened the second time."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0

    def open_update(self, path: str) -> int:
        if "/cur/" in path:
            self.opened += 1
            if self.opened == 2:
                raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open_update(path)


async def test_a_slot_that_opens_while_the_heart_looks_is_not_missed(tmp_path: Path) -> None:
    # Many windows that open while nothing else happens that could wake it.
    upstream = ", limits: [{messages: 1, per: 5ms}], guard: 1ms"
    async with Smarthost() as host, House(policy_of(tmp_path, host.port, upstream)) as house:
        for number in range(150):
            house.accept(f"r{number}@x.example")
        await house.until_empty()

        assert len(host.relayed) == 150


async def test_a_message_that_cannot_be_read_for_lack_of_our_own_is_tried_again_unasked(
    tmp_path: Path,
) -> None:
    disk = ShortOfDescriptors()
    async with Smarthost(Script(connect="421 4.3.2 not yet")) as host:
        policy = policy_of(tmp_path, host.port)
        async with House(policy) as house:
            house.accept()
            await house.until(lambda: house.heart.pausing.because)
        host.script = Script()
        # Opened by recovery, to be sent, to be sent again, and to be marked.
        async with House(policy, disk) as house:
            await house.until(lambda: house.heart.pausing.because)
            assert house.sender.upstreams.resume("isp")
            await house.until_empty()

            assert len(host.relayed) == 1
    assert disk.opened == 4
