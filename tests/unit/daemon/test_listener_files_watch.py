"""When a listener's users and certificate are read again, and how unfit files are reported."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from relay.clock import SECOND_NS
from relay.daemon.listener_files_watch import ListenerFilesWatch
from relay.listener.listener_files import ListenerFiles
from relay.policy.model import Listen
from relay.policy.secrets import read_key_pair
from relay.status.snapshot import CertificateStatus
from relay.telemetry.metrics import Metrics
from tests.fakes.certificates import make_certificates
from tests.unit.sender.in_process_relay import Relay, policy_of

HASH = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("open sesame")


class World:
    def __init__(self, folder: Path, relay: Relay) -> None:
        self.relay = relay
        self.users = folder / "users"
        self.name("mjd", "zed")
        self.metrics = Metrics()
        self.used: list[tuple[int, set[str]]] = []
        self.watch = ListenerFilesWatch(self._use, relay.status_view, relay.events, self.metrics)

    async def begin(self) -> None:
        without = Listen.model_validate({"address": "127.0.0.1:2525"}, strict=False)
        # No listener process, on any host: such a process reports itself what it loaded.
        policy = {"address": "127.0.0.1:2526", "users_file": str(self.users), "processes": 0}
        listen = Listen.model_validate(policy, strict=False)
        await self.watch.begin([without, listen])

    def name(self, *names: str) -> None:
        self.put("".join(f"{name}:{HASH}\n" for name in names))

    def put(self, text: str) -> None:
        self.users.write_text(text)
        self.users.chmod(0o600)

    async def look(self, *, is_asked: bool = False) -> None:
        await self.watch.look(is_asked=is_asked)

    @property
    def refused_file(self) -> str:
        return self.relay.status_view.policy_status.refused_file

    def told(self, words: str) -> int:
        return self.relay.log.getvalue().count(words)

    def reloads(self, result: str) -> float | None:
        return self.metrics.registry.get_sample_value("relay_policy_reloads_total", {"result": result})

    def _use(self, index: int, files: ListenerFiles) -> None:
        self.used.append((index, set(files.hashes)))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with Relay(policy_of(tmp_path, 9)) as relay:
        world = World(tmp_path, relay)
        await world.begin()
        assert world.used == [(1, {"mjd", "zed"})]
        assert world.told("listener 127.0.0.1:2526: files loaded, 2 users") == 1
        yield world


async def test_the_snapshot_shows_when_a_certificate_ends_before_and_after_renewal(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    listen = Listen.model_validate(
        {"address": "127.0.0.1:2527", "certificate": str(made.cert), "key": str(made.key)}, strict=False
    )
    async with Relay(policy_of(tmp_path, 9)) as relay:
        watch = ListenerFilesWatch(lambda *_: None, relay.status_view, relay.events, Metrics())
        await watch.begin([listen])
        first = read_key_pair(made.cert, made.key).ends_at_ns
        assert relay.status_view.snapshot().certificates == (CertificateStatus("127.0.0.1:2527", first or 0),)

        renewed = make_certificates(tmp_path, days=9)
        await watch.look(is_asked=True)
        second = read_key_pair(renewed.cert, renewed.key).ends_at_ns
        assert relay.status_view.snapshot().certificates == (
            CertificateStatus("127.0.0.1:2527", second or 0),
        )
        assert (second or 0) - (first or 0) > 6 * 86_400 * SECOND_NS


async def test_a_changed_file_counts_once_two_looks_in_a_row_find_it_the_same(world: World) -> None:
    for names in (("mjd",), ("mjd", "zoe")):
        world.name(*names)
        await world.look()
    assert len(world.used) == 1, "it was another one at each look"

    for _ in range(3):
        await world.look()
    assert world.used[1:] == [(1, {"mjd", "zoe"})]


@pytest.mark.parametrize("unfit", ["gone", "empty", "open to others", "not users"])
async def test_an_unfit_file_is_reported_once_and_the_last_good_one_stays(world: World, unfit: str) -> None:
    match unfit:
        case "gone":
            world.users.unlink()
        case "empty":
            world.put("")
        case "open to others":
            world.users.chmod(0o644)
        case _:
            world.put("mjd:open sesame\n")
    for _ in range(4):
        await world.look()

    assert len(world.used) == 1
    assert str(world.users) in world.refused_file
    assert world.told("the last good users and certificate stay") == 1
    assert world.told("open sesame") == 0
    world.name("mjd", "zed")
    for _ in range(2):
        await world.look()
    assert world.refused_file == ""
    assert world.used[1:] == [(1, {"mjd", "zed"})]
    assert (world.reloads("refused"), world.reloads("ok")) == (1, 1)
