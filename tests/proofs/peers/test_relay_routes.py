"""Two upstreams of one relay that is killed each second: nothing lost, and never over on either."""

import smtplib
from collections import Counter
from pathlib import Path

import pytest

from relay.practice.witness import Witnessed
from tests.proofs.peers.practice import Practice
from tests.proofs.peers.relay import RelayProcess

pytestmark = pytest.mark.slow

COUNT = 20
LIMIT = {"messages": COUNT, "per": "2s"}
CONNECTIONS = 4
KILLS = 6
EACH = 8


def hand_over(relay: RelayProcess, first: int, count: int) -> None:
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
        for number in range(first, first + count):
            recipients = [f"r{number}@x.one", f"r{number}@x.two"]
            session.sendmail("mjd@front.test", recipients, f"Subject: {number}\r\n\r\nx\r\n")


def relayed(host: Practice) -> Counter[str]:
    taken = [entry for entry in list(host.ledger.entries) if entry.fate is Witnessed.RELAYED]
    return Counter(each for entry in taken for each in entry.envelope.recipients)


def test_kills_a_pause_and_a_crash_lose_nothing_and_exceed_nothing(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("one", "two")}
    for folder in folders.values():
        folder.mkdir()
    with (
        Practice(folders["one"], LIMIT, seed=1) as one,
        Practice(folders["two"], LIMIT, seed=2) as two,
    ):
        upstreams = {
            # A kill wastes the slots of what is in flight until the deadline.
            name: host.upstream(
                history=f"./{name}.history", connections=CONNECTIONS, limits=[LIMIT], max_transaction="5s"
            )
            for name, host in (("one", one), ("two", two))
        }
        routes = [
            {"recipient_domain": "*.two", "upstreams": ["two"]},
            {"upstreams": ["one", "two"], "failover_after": "1s"},
        ]
        relay = RelayProcess(tmp_path, upstreams, routes=routes)
        with relay:
            for kill in range(KILLS):
                hand_over(relay, kill * EACH, EACH)
                if kill == 1:
                    assert relay.command("pause", "one").returncode == 0
                if kill == 3:
                    one.crash()
                # In the middle of each batch.
                two.wait_until(lambda ledger: ledger.relayed >= kill * EACH + 3, within_s=60)  # noqa: B023 - at once
                relay.kill()
                relay.start()
            # Its pause outlived the kills; its mail failed over.
            two.wait_until(lambda _: len(relayed(one) + relayed(two)) == 2 * KILLS * EACH, within_s=120)
            relay.wait_until_empty()
            before = sum(relayed(one).values())
            assert relay.command("resume", "one").returncode == 0
            # One message shows that it is well, and all others follow.
            hand_over(relay, KILLS * EACH, 1)
            relay.wait_until_empty()
            hand_over(relay, KILLS * EACH + 1, EACH - 1)
            relay.wait_until_empty()
            assert sum(relayed(one).values()) == before + EACH

    both = relayed(one) + relayed(two)
    everybody = {f"r{number}@x.{name}" for number in range((KILLS + 1) * EACH) for name in ("one", "two")}
    assert set(both) == everybody
    assert sum(both.values()) - len(both) <= (KILLS + 1) * 2 * CONNECTIONS, "one a connection that was cut"
    for host in (one, two):
        assert host.ledger.refused == 0
        assert host.ledger.most_in_any_window() <= COUNT
    assert not any(recipient.endswith(".two") for recipient in relayed(one))
    assert any(recipient.endswith(".one") for recipient in relayed(two))
