"""An edit of the policy file counts once the file rests, or when a reload is asked for."""

from pathlib import Path

from relay.daemon.policy_watch import REST_NS, PolicyWatch
from relay.policy.model import Policy
from relay.policy.source import PolicyError
from tests.fakes.clock import FakeClock
from tests.unit.policy.examples import SMALL

WIDER = SMALL.replace("messages: 8", "messages: 9")


class Followed:
    """A policy file and its watch; records which policies were loaded or refused."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "policy.yaml"
        self.path.write_text(SMALL)
        self.clock = FakeClock()
        self.loaded: list[int] = []
        self.refused: list[str] = []
        self.watch = PolicyWatch(self.path, SMALL.encode(), self, self.clock)

    async def apply(self, policy: Policy, _sha256: str) -> None:
        self.loaded.append(policy.upstreams["isp"].limits[0].count)

    def refuse(self, error: PolicyError) -> None:
        self.refused.append(error.errors[0].key)

    async def look(self, after_ns: int = 0, *, is_asked: bool = False) -> None:
        self.clock.advance(after_ns)
        await self.watch.look(is_asked=is_asked)


async def test_an_edit_counts_once_the_file_has_rested(tmp_path: Path) -> None:
    """A writer may pause between two writes, for less than REST_NS."""
    followed = Followed(tmp_path)
    for end in range(len(SMALL) // 2, len(WIDER), 9):
        followed.path.write_text(WIDER[:end])
        await followed.look()
        await followed.look(REST_NS - 1)
    followed.path.write_text(WIDER)
    for _ in range(3):
        await followed.look(REST_NS)

    assert (followed.loaded, followed.refused) == ([9], [])


async def test_a_requested_reload_is_in_force_at_once(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    followed.path.write_text(WIDER)
    await followed.look(is_asked=True)
    assert followed.loaded == [9]

    # Again, with the policy that is already in force.
    await followed.look(is_asked=True)
    assert followed.loaded == [9, 9]


async def test_a_bad_edit_is_reported_once_and_undoing_it_is_an_edit(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    followed.path.write_text(SMALL.partition("    limits:")[0])
    for _ in range(3):
        await followed.look(REST_NS)
    assert (followed.loaded, followed.refused) == ([], ["upstreams.isp.limits"])

    followed.path.write_text(SMALL)
    for _ in range(3):
        await followed.look(REST_NS)
    assert followed.loaded == [8]


async def test_a_policy_file_that_is_missing_for_a_moment_is_not_reported(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    followed.path.rename(tmp_path / "away")
    await followed.look()
    await followed.look(REST_NS - 1)
    (tmp_path / "away").rename(followed.path)
    await followed.look(1)
    await followed.look(REST_NS)
    assert (followed.loaded, followed.refused) == ([], [])

    followed.path.unlink()
    await followed.look()
    await followed.look(REST_NS)
    assert followed.refused == ["policy"]


async def test_swapping_a_symbolic_link_two_levels_up_is_an_edit(tmp_path: Path) -> None:
    """Kubernetes mounts a ConfigMap this way: policy.yaml -> ..data/policy.yaml, ..data -> ..2026_01."""
    for name in ("..1", "..2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(WIDER)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    followed = Followed(tmp_path)
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    await followed.look()
    await followed.look(REST_NS)
    assert followed.loaded == [9]
