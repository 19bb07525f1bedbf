"""What an operator sees of what is set aside and of what is not taken yet."""

import io
from pathlib import Path

import pytest

from relay.cli.render import queue_lines
from relay.control.client import ControlClient
from relay.control.server import ControlServer
from relay.control.wire import PolicyInForce
from relay.spool.interface import Totals
from relay.status.snapshot import QueueState, message_to_json
from relay.telemetry.events import Events
from tests.fakes.clock import FakeClock
from tests.fakes.foreign import KINDS, kind_of, plant
from tests.fakes.operations import FakeOperations
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of


async def test_what_is_set_aside_is_listed_behind_the_queue(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        relay = Relay(policy)
        queue_id = relay.accept()
        for number, kind in enumerate(KINDS):
            plant(Path(policy.spool) / "new" / f"{number}\x1b", kind, tmp_path / "victim")
        async with relay:
            await relay.until(lambda: host.relayed)
            listed = await relay.operator.queue()
            corrupt = [message for message in listed if message.state is QueueState.CORRUPT]

            assert len(corrupt) == len(KINDS)
            assert all(message.reason and message.queue_id.isprintable() for message in corrupt)
            assert all(message_to_json(message)["state"] == "corrupt" for message in corrupt)
            lines = list(queue_lines(corrupt, relay.clock.wall_ns()))
            assert len(lines) == len(KINDS) + 2
            assert all(" corrupt " in line and "unknown" in line for line in lines[1:-1])
            assert await relay.operator.act("delete", [corrupt[0].queue_id]) == {
                corrupt[0].queue_id: "absent"
            }
            assert relay.watch.snapshot().counts(QueueState.CORRUPT).messages == len(KINDS)
    assert [relayed.recipients for relayed in host.relayed] == [["b@there.example"]]
    assert queue_id not in {message.queue_id for message in corrupt}


async def test_what_is_accepted_and_not_taken_is_incoming(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept()
        await relay.until_empty()
        # As while a relay stops: nothing more is taken, and listeners are not closed yet.
        await relay.sender.finish()
        for _ in range(3):
            relay.accept()
        await relay.sender.look()

        assert relay.watch.snapshot().counts(QueueState.INCOMING).messages == 3
        assert relay.sender.queued == 3
        assert relay.sender.seen.totals == Totals(accepted=1, relayed=1)


async def test_a_start_tells_in_one_line_what_it_found(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        relay = Relay(policy)
        relay.accept()
        spool = Path(policy.spool)
        (spool / "new" / "README").write_text("x")
        (spool / "tmp" / "0123456789abcdef").touch()
        async with relay:
            await relay.until(lambda: host.relayed)
        relay.events.flush()

    (line,) = [line for line in relay.log.getvalue().splitlines() if "recovered in" in line]
    for count in (
        "queued=1",
        "taken=1",
        "resumed=0",
        "finished=0",
        "abandoned=1",
        "set_aside=1",
        "corrupt=1",
    ):
        assert count in line, line


@pytest.mark.parametrize("kind", KINDS)
async def test_what_stands_in_the_sockets_place_is_set_aside(tmp_path: Path, kind: str) -> None:
    (tmp_path / "corrupt").mkdir()
    (tmp_path / "victim").write_text("untouched")
    plant(tmp_path / "control.sock", kind, tmp_path / "victim")
    found = kind_of(tmp_path / "control.sock")
    assert ControlClient(tmp_path).is_up() is False
    server = ControlServer(
        tmp_path,
        FakeOperations(),
        Events(io.StringIO(), "text", FakeClock()),
        lambda: PolicyInForce(tmp_path, ""),
    )
    await server.start()
    try:
        assert ControlClient(tmp_path).is_up()
    finally:
        await server.stop()

    kept = [kind_of(path) for path in (tmp_path / "corrupt").iterdir()]
    # A socket there was one of a relay that died.
    assert kept == ([] if kind == "a socket" else [found])
    assert (tmp_path / "victim").read_text() == "untouched"


async def test_a_link_to_a_socket_in_its_place_is_set_aside(
    tmp_path: Path,
) -> None:
    (tmp_path / "corrupt").mkdir()
    plant(tmp_path / "elsewhere", "a socket", tmp_path)
    (tmp_path / "control.sock").symlink_to("elsewhere")
    server = ControlServer(
        tmp_path,
        FakeOperations(),
        Events(io.StringIO(), "text", FakeClock()),
        lambda: PolicyInForce(tmp_path, ""),
    )
    await server.start()
    await server.stop()

    assert (tmp_path / "corrupt" / "control.sock").is_symlink()
    assert (tmp_path / "elsewhere").is_socket()
