"""Mail that waits goes on through kills, and from one engine of the spool to the other and back."""

import os
import smtplib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import free_port, wait_until
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

LONG = "Subject: long\r\n\r\n" + ("x" * 70 + "\r\n") * 6_000
SEED = 7


def hand_over(relay: WarmRelay, contents: Sequence[str]) -> None:
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
        for content in contents:
            session.sendmail("mjd@front.test", ["r@list.test", "s@list.test"], content)


def listed(relay: WarmRelay) -> list[tuple[str, str]]:
    """Return each message's id and state."""
    return sorted((each["queue_id"], each["state"]) for each in relay.queue())


def use(relay: WarmRelay, engine: str) -> None:
    """Convert the spool, and let the policy say so."""
    converted = relay.command("spool", "convert", "--to", engine)
    assert converted.returncode == os.EX_OK, converted.stderr
    relay.policy["spool"] = {"path": "./spool", "engine": engine}
    relay.write_policy()


def test_mail_goes_on_through_kills_and_conversions(tmp_path: Path) -> None:
    limit = {"messages": 1000, "per": "1s"}
    nowhere = {"host": "127.0.0.1", "port": free_port(), "tls": "none"}
    with StrictSmarthost(tmp_path, limit, seed=SEED) as host:
        relay = WarmRelay(tmp_path, {"isp": nowhere}, spool={"path": "./spool", "engine": "log"})
        relay.start()
        hand_over(relay, ["Subject: x\r\n\r\nx\r\n"] * 5 + [LONG])
        (held, _), *_ = listed(relay)
        assert relay.command("queue", "hold", held).returncode == os.EX_OK
        relay.kill()
        before = listed(relay)
        assert (len(before), [state for _, state in before].count("held")) == (6, 1)
        assert relay.command("fsck").returncode in (os.EX_OK, 1)

        for engine in ("maildir", "log", "maildir"):
            use(relay, engine)
            assert listed(relay) == before
            assert relay.command("fsck").returncode == os.EX_OK
        relay.start()
        hand_over(relay, ["Subject: y\r\n\r\ny\r\n"] * 3)
        assert relay.stop() == 0

        use(relay, "log")
        relay.policy["upstreams"] = {"isp": host.upstream(connections=2, limits=[])}
        relay.write_policy()
        with relay:
            assert relay.command("queue", "release", held).returncode == os.EX_OK
            wait_until(lambda: host.ledger.relayed == 9)
            wait_until(lambda: listed(relay) == [])
        assert (host.ledger.relayed, host.ledger.abandoned) == (9, 0)
        assert relay.command("fsck").returncode == os.EX_OK
