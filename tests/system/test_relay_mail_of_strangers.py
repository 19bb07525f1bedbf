"""Mail as it is in use, however odd: the relay takes it by SMTP or sendmail, and passes it on as it came."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.smarthost import Script, Smarthost
from tests.fakes.smarthost_dialogue import Recorded
from tests.system import postfix
from tests.system.demand import demand
from tests.system.relay import PROJECT, RelayProcess
from tests.system.shapes import without_traces
from tests.system.waiting import HANG_S

pytestmark = pytest.mark.full

LONG = b"bounce+" + b"7" * 900 + b"@b.test"
ADDRESSES = {
    b"<" + LONG + b">": LONG,
    b"<a@b_c.test>": b"a@b_c.test",
    b"<user..x@b.test>": b"user..x@b.test",
    b"<.x@b.test>": b".x@b.test",
    b"<x.@b.test>": b"x.@b.test",
    b"<a@b.test.>": b"a@b.test.",
    b"< a@b.test >": b"a@b.test",
    b"   <a@b.test>": b"a@b.test",
    b"a@b.test": b"a@b.test",
    b"<@r1.test,@r2.test:a@b.test>": b"a@b.test",
    b'<"a b"@c.test>': b'"a b"@c.test',
    b"<a@[192.0.2.1]>": b"a@[192.0.2.1]",
}
"""How an address stands behind `RCPT TO:`, and what is passed on.  Postfix takes all of them."""
BESIDE_POSTFIX = {
    b"Ann <a@b.test>": b"a@b.test",
    b'"N, <x@y.test>" <a@b.test>': b"a@b.test",
    b"<Postmaster>": b"Postmaster",
}
"""Postfix refuses a display name, and completes a name without a domain."""
TEXT = b"Subject: x\r\n\r\nhello\r\n"


class Way:
    """A client, the relay, and its upstream."""

    def __init__(self, relay: RelayProcess, upstream: Smarthost) -> None:
        self.relay = relay
        self.upstream = upstream

    async def say(self, *lines: bytes, content: bytes | None = None) -> list[bytes]:
        return await asyncio.to_thread(replies, self.relay.port, lines, content)

    async def run(self, *words: str, text: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "relay", *words],
            cwd=PROJECT,
            env=os.environ | {"RELAY_POLICY": str(self.relay.policy_path)},
            input=text,
            capture_output=True,
            timeout=HANG_S,
            check=False,
        )

    async def relayed(self, count: int = 1) -> list[Recorded]:
        """Return what the upstream took, once it is so many."""
        await self.upstream.until(lambda: len(self.upstream.relayed) >= count)
        return self.upstream.relayed


@contextlib.asynccontextmanager
async def way(
    folder: Path, script: Script | None = None, extensions: tuple[str, ...] | None = None, **policy: object
) -> AsyncIterator[Way]:
    async with Smarthost(script, extensions=extensions) as upstream:
        isp = {"host": "127.0.0.1", "port": upstream.port, "tls": "none", "limits": []}
        relay = RelayProcess(folder, {"isp": isp}, **policy)
        await asyncio.to_thread(relay.start)
        try:
            yield Way(relay, upstream)
        finally:
            await asyncio.to_thread(relay.stop)


def replies(port: int, lines: tuple[bytes, ...], content: bytes | None = None) -> list[bytes]:
    """Say one command after the other, then the content, which is stuffed; return each last line."""
    with socket.create_connection(("127.0.0.1", port), HANG_S) as client, client.makefile("rb") as reader:

        def reply() -> bytes:
            while (line := reader.readline())[3:4] == b"-":
                pass
            return line.rstrip(b"\r\n")

        found = [reply()]
        for line in lines:
            client.sendall(line + b"\r\n")
            found.append(reply())
        if content is not None:
            client.sendall(b"DATA\r\n")
            found.append(reply())
            client.sendall(content + b".\r\n")
            found.append(reply())
        return found


def are_positive(found: list[bytes]) -> bool:
    return all(each[:1] in b"23" for each in found)


async def test_an_address_in_use_is_taken_and_passed_on_as_it_came(tmp_path: Path) -> None:
    async with way(tmp_path, hostname="our_host.test") as each:
        for wire, address in (ADDRESSES | BESIDE_POSTFIX).items():
            if b"@" in address:
                found = await each.say(
                    b"EHLO x", b"MAIL FROM:" + wire + b"   SIZE=99", b"RCPT TO:" + wire, content=TEXT
                )
            else:
                found = await each.say(b"EHLO x", b"MAIL FROM:<>", b"RCPT TO:" + wire, content=TEXT)
            assert are_positive(found), (wire, found)
        # Our own name has one too; and a name without a domain gets ours.
        assert (await each.run("sendmail", "root", text=TEXT)).returncode == os.EX_OK
        relayed = await each.relayed(len(ADDRESSES | BESIDE_POSTFIX) + 1)

    expected = [*(ADDRESSES | BESIDE_POSTFIX).values(), b"root@our_host.test"]
    assert sorted(each.recipients[0].encode() for each in relayed) == sorted(expected)
    assert {each.reverse_path.encode() for each in relayed} >= {
        each for each in expected[:-2] if b"@" in each
    }


async def test_a_sender_hears_of_an_odd_address_that_the_upstream_refuses(tmp_path: Path) -> None:
    def refuses(argument: str) -> str:
        return "250 ok" if "ann@here.test" in argument else "501 5.1.3 bad recipient address syntax"

    sent = b"RCPT TO:<a@b_c.test>", b"RCPT TO:<.x@b.test.>", b"RCPT TO:<Postmaster>"
    async with way(tmp_path, Script(rcpt=refuses)) as each:
        assert are_positive(await each.say(b"EHLO x", b"MAIL FROM:<ann@here.test>", *sent, content=TEXT))
        (report,) = await each.relayed()

    assert report.reverse_path == ""
    for address in (b"a@b_c.test", b".x@b.test.", b"Postmaster"):
        assert b"Final-Recipient: rfc822; " + address + b"\r\n" in report.content


async def test_postfix_takes_and_hands_on_what_the_relay_takes(tmp_path: Path) -> None:
    """The addresses are quoted then as it thinks right, and ORCPT has them too."""
    demand(postfix.why_missing())
    async with way(tmp_path) as each:
        with postfix.front(each.relay.port) as front:
            for wire in ADDRESSES:
                said = (b"EHLO x", b"MAIL FROM:" + wire + b"   SIZE=99", b"RCPT TO:" + wire)
                found = await asyncio.to_thread(replies, front.port, said, TEXT)
                assert are_positive(found), (wire, found)
            relayed = await each.relayed(len(ADDRESSES))

    assert {message.recipients[0] for message in relayed} >= {LONG.decode(), "a@b_c.test", '"user..x"@b.test'}


FIRST_LINES = {
    b" by evil.test (we trust it)\r\n": b"\r\n by evil.test (we trust it)\r\n",
    b"\tb\r\n": b"\r\n\tb\r\n",
    b"From ann Mon Nov 23\r\n": b"X-Mailbox-Line: From ann Mon Nov 23\r\n",
    b">From ann Mon Nov 23\r\n": b"X-Mailbox-Line: >From ann Mon Nov 23\r\n",
    b"From: ann@here.test\r\n": b"From: ann@here.test\r\n",
}
"""And what stands below our own line."""


async def test_the_first_line_of_content_neither_joins_our_trace_line_nor_breaks_the_header(
    tmp_path: Path,
) -> None:
    maildir = tmp_path / "maildir"
    for name in ("new", "cur", "tmp"):
        (maildir / name).mkdir(parents=True)
    rest = b"Subject: x\r\n\r\nhi\r\n"
    expected = {kept + rest for kept in FIRST_LINES.values()}
    async with way(tmp_path) as each:
        for number, line in enumerate(FIRST_LINES):
            (maildir / "new" / f"{number}.a.b").write_bytes(line + rest)
            said = (b"EHLO x", b"MAIL FROM:<>", b"RCPT TO:<a@b.test>")
            assert are_positive(await each.say(*said, content=line + rest))
            done = await each.run("sendmail", "-i", "a@b.test", text=line + rest)
            assert (done.returncode, done.stderr) == (os.EX_OK, b"")
        by_both = list(await each.relayed(2 * len(FIRST_LINES)))
        await each.run("drain", "--sender", "ann@here.test", "--to", "b@there.test", str(maildir))
        drained = (await each.relayed(3 * len(FIRST_LINES)))[len(by_both) :]

    by_smtp = [message for message in by_both if message.reverse_path == ""]
    for relayed in (by_smtp, drained):
        assert {without_traces(message.content, 1) for message in relayed} == expected
    by_sendmail = [message.content for message in by_both if message.reverse_path != ""]
    assert all(any(content.endswith(each) for content in by_sendmail) for each in expected)


async def test_nul_in_content_is_kept(tmp_path: Path) -> None:
    content = b"Subject: x\0y\r\n\r\na\0b\0\r\n\0.\r\n"
    async with way(tmp_path) as each:
        assert are_positive(
            await each.say(b"EHLO x", b"MAIL FROM:<>", b"RCPT TO:<a@b.test>", content=content)
        )
        (relayed,) = await each.relayed()

    assert without_traces(relayed.content, 1) == content


async def test_smtputf8_is_needed_only_where_envelope_or_header_is_beyond_ascii(tmp_path: Path) -> None:
    """The upstream does not offer it: what needs it is returned, all else passes."""
    async with way(tmp_path, extensions=("8BITMIME", "SIZE 10000000")) as each:
        for sender, content in (
            (b"ann@here.test", TEXT),
            (b"ann@here.test", b"Subject: x\r\n\r\n" + "grüße\r\n".encode()),
            (b"bob@here.test", b"Subject: " + "grüße\r\n\r\n".encode()),
        ):
            mail = b"MAIL FROM:<" + sender + b"> SMTPUTF8 BODY=8BITMIME"
            assert are_positive(await each.say(b"EHLO x", mail, b"RCPT TO:<a@b.test>", content=content))
        relayed = await each.relayed(2)
        await asyncio.to_thread(
            each.relay.wait_for_log,
            lambda line: "SMTPUTF8" in line and "bob@here.test" in "".join(each.relay.log()),
        )

    assert {message.reverse_path for message in relayed} == {"ann@here.test"}


async def test_a_client_is_greeted_whatever_it_calls_itself(tmp_path: Path) -> None:
    names = {
        b"ANNS PC": b"ANNS?PC",
        b"J\xd6RG-PC": b"J?RG-PC",
        "JÖRG-PC".encode(): b"J?RG-PC",
        b"x" * 300: b"x" * 255,
    }
    async with way(tmp_path) as each:
        for number, (name, shown) in enumerate(names.items(), 1):
            said = b"EHLO " + name, b"MAIL FROM:<>", b"RCPT TO:<a@b.test>"
            assert are_positive(await each.say(*said, content=TEXT))
            relayed = (await each.relayed(number))[-1]
            assert relayed.content.startswith(b"Received: from " + shown + b" (unknown [127.0.0.1])\r\n")


async def test_a_list_of_addresses_that_is_made_to_be_slow_is_read_all_the_same(tmp_path: Path) -> None:
    """None is an address: a megabyte of each is read through once, and refused; else this takes for ever."""
    async with way(tmp_path) as each:
        for text in (
            b"To: " + b"[" * 1_000_000,
            b"To: a@b.test" + b"\n x" * 300_000,
            b"To: " + b'"[\\' * 300_000,
        ):
            done = await each.run("sendmail", "-t", text=text + b"\n\nhi\n")
            assert done.returncode == os.EX_DATAERR
            assert len(done.stderr) < 10_000
