"""What an operator sees of what is set aside and of what is not taken yet."""

from pathlib import Path

from relay.cli.render import queue_lines
from relay.status.snapshot import QueueState, message_to_json
from relay.telemetry.metric_table import Totals
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of


async def test_what_is_set_aside_is_listed_behind_the_queue(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        relay = Relay(policy)
        queue_id = relay.accept()
        damaged = relay.accept("c@there.example")
        (path,) = (each for each in (Path(policy.spool) / "new").iterdir() if damaged in each.name)
        path.write_bytes(path.read_bytes().replace(b"c@there", b"x@there"))
        async with relay:
            await relay.until(lambda: host.relayed)
            listed = await relay.operator.queue()
            (corrupt,) = [message for message in listed if message.state is QueueState.CORRUPT]

            assert corrupt.reason
            assert message_to_json(corrupt)["state"] == "corrupt"
            _, line, _ = queue_lines([corrupt], relay.clock.wall_ns())
            assert " corrupt " in line
            assert await relay.operator.act("delete", [corrupt.queue_id]) == {corrupt.queue_id: "absent"}
            assert relay.watch.snapshot().counts(QueueState.CORRUPT).messages == 1
    assert [relayed.recipients for relayed in host.relayed] == [["b@there.example"]]
    assert queue_id != corrupt.queue_id


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
        assert relay.sender.totals == Totals(accepted=1, relayed=1)


async def test_a_start_tells_in_one_line_what_it_found(tmp_path: Path) -> None:
    # What is refused is still queued whenever the last page is read.
    async with Smarthost(Script(mail=lambda _: "450 4.7.1 not now")) as host:
        policy = policy_of(tmp_path, host.port)
        relay = Relay(policy)
        relay.accept()
        async with relay:
            await relay.until(lambda: not relay.sender.is_reading)
        relay.events.flush()

    (line,) = [line for line in relay.log.getvalue().splitlines() if "recovered in" in line]
    assert line.endswith("queued=1 event=recovered")
