"""The account never sleeps on: whatever it waits for, something wakes it."""

import errno
from pathlib import Path

from tests.fakes.smarthost import Script, Smarthost
from tests.fakes.unsynced import Unsynced
from tests.unit.sender.in_process_relay import Relay, policy_of


class ShortOfDescriptors(Unsynced):
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


async def test_what_finds_no_descriptor_is_settled_again(
    tmp_path: Path,
) -> None:
    disk = ShortOfDescriptors()
    async with Smarthost(Script(connect="421 4.3.2 not yet")) as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until(lambda: relay.account.pausing.state.why)
        host.script = Script()
        # Opened to be claimed, to be marked, and to be marked again.
        async with Relay(policy, disk) as relay:
            await relay.until(lambda: relay.account.pausing.state.why)
            assert relay.sender.upstreams.resume("isp")
            await relay.until_empty()

            assert len(host.relayed) == 1
    assert disk.opened == 3
