"""`relay find` on a real relay: a message before, while and after it is relayed, and after a restart."""

import contextlib
import io
import json
import os
import smtplib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.cli.main import main
from tests.proofs.peers.practice import Practice
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.waiting import wait_until

pytestmark = pytest.mark.slow

SENDER = "mjd@front.test"
LONG = b"x" * 76 + b"\r\n"


class FoundRelay:
    """A relay towards a practice upstream that refuses `bad…` for good and `stay…` for now."""

    def __init__(self, relay: RelayProcess) -> None:
        self.relay = relay

    def hand_over(self, message_id: str, *recipients: str, content: bytes = b"hello\r\n") -> str:
        """Hand over a message; return its queue id."""
        with smtplib.SMTP("127.0.0.1", self.relay.port, timeout=60) as session:
            session.ehlo()
            session.mail(SENDER)
            for recipient in recipients:
                session.rcpt(recipient)
            trace = "Received: by front.test (Postfix, from userid 7)\r\n\tid 4XYZ17abc; today\r\n"
            names = f"Message-ID: {message_id}\r\nSubject: =?utf-8?q?Z=C3=BCrich?= weekly\r\n"
            _, reply = session.data(f"{trace}{names}\r\n".encode() + content)
        return reply.decode().split()[-1]

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a verb in this process, which exits with this code; return what it printed."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == code, said.getvalue()
        return said.getvalue()

    def find(self, text: str, *options: str, code: int = 0) -> list[dict[str, Any]]:
        """Return what is found."""
        return [
            json.loads(line) for line in self.run("find", text, "--json", *options, code=code).splitlines()
        ]

    def ends(self, text: str) -> dict[str, str]:
        """Return what became of each recipient that was found in the recent past."""
        return {each["recipient"]: each["became"] for each in self.find(text) if each["found"] == "recent"}

    def wait_for(self, recipient: str, status: str) -> None:
        """Wait until the log, as JSON, tells of an attempt."""
        said = f'"recipient": "{recipient}"', f'"status": "{status}"'
        self.relay.wait_for_log(lambda line: all(each in line for each in said))

    def deliveries(self) -> list[dict[str, Any]]:
        """Return the events that tell what became of a recipient."""
        told = [json.loads(line) for line in self.relay.log() if line.startswith("{")]
        return [each for each in told if each["event"] == "delivery"]


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FoundRelay]:
    with Practice(tmp_path, {"messages": 100, "per": "1m"}, seed=1) as practice:
        retry = {"min": "1h", "max": "1h", "lifetime": "5d"}
        relay = RelayProcess(tmp_path, {"isp": practice.upstream()}, retry=retry)
        monkeypatch.setenv("RELAY_POLICY", str(relay.policy_path))
        monkeypatch.setenv("RELAY_LOG", "json")
        yield FoundRelay(relay)


def test_a_message_is_found_before_while_and_after_it_is_relayed(found: FoundRelay) -> None:
    relay = found.relay
    with relay:
        found.run("pause", "isp")
        queue_id = found.hand_over("<one@Front.test>", "ok@list.test", "bad@list.test", "stay@list.test")
        for text in (
            "<ONE@front.test>",
            "one@f",
            queue_id,
            queue_id[4:12],
            "OK@list.test",
            "@list.test",
            SENDER,
            "weekly zürich",
            "4xyz17ABC",
        ):
            (message,) = found.find(text)
            assert (message["found"], message["queue_id"]) == ("queue", queue_id)
            assert message["message_id"] == "<one@Front.test>"
        assert queue_id in found.run("find", "stay@")
        assert found.find("<two@front.test>", code=1) == []
        # Of more recipients than memory has of a message.
        many = found.hand_over("<many@else.test>", *(f"m{number}@else.test" for number in range(7)))
        assert [each["queue_id"] for each in found.find("M6@else.test")] == [many]
        found.run("queue", "delete", many)
        assert found.ends("m6@else") == {"m6@else.test": "deleted"}

        found.run("resume", "isp")
        found.wait_for("stay@list.test", "deferred")
        found.wait_for("bad@list.test", "bounced")
        by_recipient = {
            each["recipient"]: each for each in found.find("<one@front.test>") if each["found"] == "recent"
        }
        assert {name: each["became"] for name, each in by_recipient.items()} == {
            "ok@list.test": "relayed",
            "bad@list.test": "bounced",
        }
        assert by_recipient["bad@list.test"]["reply"] == "550 5.1.1 nobody of that name"
        assert by_recipient["ok@list.test"]["reply"].startswith("250 ")
        assert {each["upstream"] for each in by_recipient.values()} == {"isp"}
        assert {each["message_id"] for each in by_recipient.values()} == {"<one@Front.test>"}
        names = {(each["subject"], each["client_queue_id"]) for each in by_recipient.values()}
        assert names == {("Zürich weekly", "4XYZ17abc")}
        for text in ("weekly zürich ok@list.test", "4xyz17ABC ok@list.test"):
            assert [each["recipient"] for each in found.find(text) if each["found"] == "recent"] == [
                "ok@list.test"
            ]
        (waiting,) = (each for each in found.find("stay@list.test"))
        assert (waiting["found"], waiting["state"]) == ("queue", "deferred")

        found.run("queue", "delete", queue_id)
        assert found.ends("ONE@") == {
            "ok@list.test": "relayed",
            "bad@list.test": "bounced",
            "stay@list.test": "deleted",
        }
        relay.wait_until_empty()

    everything = found.find("one@front.test")
    assert len(everything) == 3  # its report is not of that Message-ID
    assert found.find("one@front.test", "--limit", "1") == everything[:1]
    with relay:
        assert found.find("one@front.test") == everything


def test_the_message_id_of_a_long_message_is_in_each_line_that_settles(found: FoundRelay) -> None:
    relay = found.relay
    with relay:
        long = found.hand_over("<long@front.test>", "ok@list.test", "bad@list.test", content=LONG * 5000)
        relay.wait_until_empty()
        # Its report is found by the id too, which begins with that of the message.
        ends = {"ok@list.test": "relayed", "bad@list.test": "bounced"}
        assert found.ends(long) == ends | {SENDER: "relayed"}
        assert found.ends("<long@front.test>") == ends

    told = [each for each in found.deliveries() if each["queue_id"] == long]
    assert [each["message_id"] for each in told] == ["<long@front.test>"] * 2
    assert all(each["text"] for each in told)


def test_who_used_a_window_is_told_while_the_relay_is_up_and_down(found: FoundRelay) -> None:
    relay = found.relay
    relay.policy["upstreams"]["isp"]["limits"] = [{"messages": 50, "per": "1d"}]
    relay.write_policy()
    with relay:
        for number in range(3):
            found.hand_over(f"<{number}@front.test>", "ok@list.test", "fine@list.test")
        relay.wait_until_empty()
        wait_until(lambda: found.ends("<2@front.test> fine@list.test"))
        up = json.loads(found.run("status", "--by", "sender", "--json"))
    down = json.loads(found.run("status", "--by", "sender", "--json", code=os.EX_UNAVAILABLE))
    by_client = json.loads(found.run("status", "--by", "client", "--json", code=os.EX_UNAVAILABLE))["usage"]

    (row,) = up["usage"]
    assert (row["upstream"], row["key"], row["messages"], row["recipients"]) == ("isp", SENDER, 3, 6)
    assert down["usage"] == up["usage"]
    assert [(each["key"], each["messages"]) for each in by_client] == [("unknown[127.0.0.1]", 3)]


def test_what_an_operator_ends_while_the_relay_is_down_is_found(found: FoundRelay) -> None:
    relay = found.relay
    with relay:
        bounced = found.hand_over("<b@front.test>", "stay-b@list.test")
        deleted = found.hand_over("<d@front.test>", "stay-d@list.test")
        for recipient in ("stay-b@list.test", "stay-d@list.test"):
            found.wait_for(recipient, "deferred")

    found.run("queue", "bounce", bounced)
    found.run("queue", "delete", deleted)

    assert found.ends("@front.test") == {"stay-b@list.test": "bounced", "stay-d@list.test": "deleted"}
    assert found.find(bounced)[-1]["reply"] == "removed from the queue by the operator of this relay"


def test_it_is_switched_off_while_the_relay_runs(found: FoundRelay) -> None:
    relay = found.relay
    folder = relay.folder / "spool.recent"
    with relay:
        found.hand_over("<one@front.test>", "ok@list.test")
        relay.wait_until_empty()
        assert found.ends("one@") == {"ok@list.test": "relayed"}
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}

        relay.policy["recent"] = None
        relay.write_policy()
        relay.reload()
        wait_until(lambda: not any(folder.iterdir()))
        found.hand_over("<two@front.test>", "ok@list.test")
        relay.wait_until_empty()

    assert list(folder.iterdir()) == []
    assert found.find("ok@list.test", code=1) == []
