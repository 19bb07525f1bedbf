"""Another server's test dialogues, said to a relay: each reply of the class that server gives, or why not."""

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

import pytest

from tests.proofs.peers import certificate
from tests.proofs.peers.certificate import make_certificate
from tests.proofs.peers.demand import demand
from tests.proofs.peers.dialogues import (
    DIALOGUES,
    MAX_SIZE_BYTES,
    PASSWORD,
    PLAIN,
    TLS,
    USER,
    Dialogue,
    Turn,
)
from tests.proofs.peers.practice import Practice, Seen
from tests.proofs.peers.relay import PROJECT, RelayProcess
from tests.proofs.peers.shapes import without_traces
from tests.proofs.peers.waiting import HANG_S, free_port

pytestmark = pytest.mark.slow

# What scripts and printers send, and what has to come of it.
WITHOUT_BRACKETS = [
    (b"MAIL FROM: a@b", b"RCPT TO:c@d", "a@b", "c@d"),
    (b"MAIL FROM:a@b SIZE=100 BODY=8BITMIME", b"RCPT TO:   c@d  ", "a@b", "c@d"),
    (b'MAIL FROM:"a b"@c', b"RCPT TO:x@[127.0.0.1]", '"a b"@c', "x@[127.0.0.1]"),
]


class Host:
    """A relay that takes mail in the clear and under TLS, and the upstream behind it."""

    def __init__(self, folder: Path, upstream: Practice) -> None:
        made = make_certificate(folder)
        users = folder / "users"
        command = [sys.executable, "-m", "relay", "hash-password", USER]
        hashed = subprocess.run(command, cwd=PROJECT, input=PASSWORD.encode(), stdout=-1, check=True)
        users.write_bytes(hashed.stdout)
        users.chmod(0o600)
        self.relay = RelayProcess(folder, {"isp": upstream.upstream()})
        self.upstream = upstream
        self.ports = {PLAIN: self.relay.port, TLS: free_port()}
        self.trusting = ssl.create_default_context(cafile=str(made.certificate))
        both = {"clients": ["127.0.0.0/8"], "users_file": str(users), "max_size": MAX_SIZE_BYTES}
        keys = {"certificate": str(made.certificate), "key": str(made.key), "tls": "implicit"}
        self.relay.policy["listen"] = [
            {"address": f"127.0.0.1:{self.ports[PLAIN]}"} | both,
            {"address": f"127.0.0.1:{self.ports[TLS]}"} | both | keys,
        ]
        self.relay.write_policy()

    def connect(self, door: str) -> "Client":
        connection = socket.create_connection(("127.0.0.1", self.ports[door]), timeout=HANG_S)
        if door == TLS:
            connection = self.trusting.wrap_socket(connection, server_hostname="localhost")
        return Client(connection)

    def relayed_since(self, count: int) -> list[Seen]:
        """Return what the upstream took beyond the first so many, once nothing is queued."""
        self.relay.wait_until_empty()
        return self.upstream.seen()[count:]


class Client:
    """One connection, greeted.  A context manager: at its end it is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._replies: BinaryIO = connection.makefile("rb")
        assert self._reply() == 220

    def ask(self, sent: str | bytes) -> int:
        """Send a line or octets, and return the code of the one reply."""
        self._connection.sendall(sent.encode() + b"\r\n" if isinstance(sent, str) else sent)
        return self._reply()

    def _reply(self) -> int:
        while (line := self._replies.readline())[3:4] == b"-":
            pass
        return int(line[:3])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._replies.close()
        self._connection.close()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    demand(certificate.why_missing())
    folder = tmp_path_factory.mktemp("relay")
    keep = folder / "kept"
    with Practice(folder, {"messages": 1000, "per": "1s"}, seed=0, keep=keep) as upstream:
        made = Host(folder, upstream)
        with made.relay:
            yield made


def _say(client: Client, turns: tuple[Turn, ...]) -> list[tuple[str | bytes, int, int]]:
    """Return each turn whose reply is of another class than it should be: what, wanted, got."""
    said = [(turn.sent, turn.ours or turn.theirs // 100, client.ask(turn.sent)) for turn in turns]
    return [(sent[:60], wanted, code) for sent, wanted, code in said if code // 100 != wanted]


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda each: each.name)
def test_a_reply_is_of_the_class_that_another_server_gives(host: Host, dialogue: Dialogue) -> None:
    before = len(host.relayed_since(0))
    wrong = []
    for turns in dialogue.sessions:
        with host.connect(dialogue.door) as client:
            wrong += _say(client, turns)

    assert wrong == []
    arrived = [host.upstream.content_of(seen) for seen in host.relayed_since(before)]
    assert [without_traces(content, 1) for content in arrived] == (
        [dialogue.content] if dialogue.content else []
    )


def test_a_deviation_has_its_reason_and_no_other_turn_has_one() -> None:
    turns = [turn for dialogue in DIALOGUES for turns in dialogue.sessions for turn in turns]

    assert all((turn.ours not in (0, turn.theirs // 100)) == bool(turn.why) for turn in turns)


@pytest.mark.parametrize(("mail", "rcpt", "reverse_path", "recipient"), WITHOUT_BRACKETS)
def test_an_address_without_brackets_arrives_within_them(
    host: Host, mail: bytes, rcpt: bytes, reverse_path: str, recipient: str
) -> None:
    before = len(host.relayed_since(0))
    with host.connect(PLAIN) as client:
        told = [client.ask(line + b"\r\n") for line in (b"EHLO printer", mail, rcpt, b"DATA", b"scan\r\n.")]

    # The practice upstream takes no path without its brackets.
    assert told == [250, 250, 250, 354, 250]
    (seen,) = host.relayed_since(before)
    assert (seen.entry.envelope.reverse_path, seen.entry.envelope.recipients) == (reverse_path, (recipient,))
