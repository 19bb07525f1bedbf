"""The dispatcher never sleeps on: whatever it waits for, something wakes it."""

import errno
from pathlib import Path

from relay.spool.disk.durable import RealDisk
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of


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
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, upstream)) as relay:
        for number in range(150):
            relay.accept(f"r{number}@x.example")
        await relay.until_empty()

        assert len(host.relayed) == 150


async def test_a_message_unread_for_lack_of_our_own_is_tried_again(
    tmp_path: Path,
) -> None:
    disk = ShortOfDescriptors()
    async with Smarthost(Script(connect="421 4.3.2 not yet")) as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until(lambda: relay.dispatcher.pausing.because)
        host.script = Script()
        # Opened by recovery, to be sent, to be sent again, and to be marked.
        async with Relay(policy, disk) as relay:
            await relay.until(lambda: relay.dispatcher.pausing.because)
            assert relay.sender.upstreams.resume("isp")
            await relay.until_empty()

            assert len(host.relayed) == 1
    assert disk.opened == 4
