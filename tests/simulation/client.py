"""Clients of a story: each hands a message over as an MTA does, and tries again until it is accepted.

Each try is a new message (`Copy`) with a key in its content: without a `250`, the outcome is unknown.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.loop import SimulatedLoop
from tests.simulation.script import Send

PORT = 2525
TIMEOUT_S = 300.0


@dataclass
class Copy:
    key: str
    sender: str
    recipients: tuple[str, ...]
    content: bytes
    begun_ns: int = 0
    notify: tuple[str, ...] = ()
    ret: str = ""
    queue_id: str = ""
    """The queue id in the relay's `250`."""
    accepted_ns: int = 0
    is_sent: bool = False
    """The final dot was sent, so the relay may have the message."""
    is_accepted: bool = False
    """The client saw 250."""
    refused: str = ""
    """A 5yz reply, which is a fault of the relay here."""

    def asks(self, recipient: str) -> str:
        """Return the NOTIFY of a recipient, or an empty string."""
        return self.notify[self.recipients.index(recipient)] if self.notify else ""

    @property
    def may_be_reported(self) -> bool:
        fails = any(each.startswith(("bad", "junk")) for each in self.recipients)
        return bool(self.sender) and (fails or bool(self.notify))


class Client:
    def __init__(self, loop: SimulatedLoop, send: Send, ports: Sequence[int], again_s: float) -> None:
        """`ports` are tried in turn."""
        self._loop = loop
        self._send = send
        self._ports = ports
        self._again_s = again_s
        self.copies: list[Copy] = []

    async def run(self) -> None:
        while True:
            copy = self._copy()
            self.copies.append(copy)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
                await self._hand_over(copy)
            if copy.is_accepted or copy.refused:
                return
            await asyncio.sleep(self._again_s)

    def _copy(self) -> Copy:
        send, key = self._send, f"{self._send.number}.{len(self.copies)}"
        author = f"From: Ann <{send.sender}>\r\n" if send.sender else ""
        head = f"Subject: {send.subject}\r\n{author}X-Copy: {key}\r\n\r\n".encode()
        line = b"..a line with dots, \xc3\xa9\r\n" if send.is_8bit else b"..a line with dots, and no more\r\n"
        content, now_ns = head + line * send.lines, self._loop.clock.true_ns
        return Copy(key, send.sender, send.recipients, content, now_ns, send.notify, send.ret)

    async def _hand_over(self, copy: Copy) -> None:
        reader = asyncio.StreamReader(loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport = self._loop.network.connect(self._ports[len(self.copies) % len(self._ports)], protocol)
        if transport is None:
            raise ConnectionRefusedError
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._talk(copy, reader, writer)
        finally:
            writer.close()

    async def _talk(self, copy: Copy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = " BODY=8BITMIME" if self._send.is_8bit else ""
        for line, expected in (
            ("", "220"),
            ("EHLO client.test", "250"),
            (f"MAIL FROM:<{copy.sender}>{body}{_of_mail(copy)}", "250"),
            *((f"RCPT TO:<{each}>{asked_for(copy.asks(each), each)}", "250") for each in copy.recipients),
            ("DATA", "354"),
        ):
            writer.write(f"{line}\r\n".encode() if line else b"")
            if not (await self._says(copy, reader)).startswith(expected):
                return
        copy.is_sent = True
        writer.write(copy.content.replace(b"\r\n.", b"\r\n..") + b".\r\n")
        reply = await self._says(copy, reader)
        copy.is_accepted = reply.startswith("250")
        if copy.is_accepted:
            copy.queue_id, copy.accepted_ns = reply.split()[-1], self._loop.clock.true_ns
        writer.write(b"QUIT\r\n")
        await reader.read()

    async def _says(self, copy: Copy, reader: asyncio.StreamReader) -> str:
        while True:
            line = (await reader.readuntil(b"\r\n")).decode()
            if line[3] != "-":
                break
        if line.startswith("5"):
            copy.refused = line
        return line


def _of_mail(copy: Copy) -> str:
    return (f" RET={copy.ret}" if copy.ret else "") + (f" ENVID=E{copy.key}" if copy.notify else "")


def asked_for(notify: str, recipient: str) -> str:
    """Return the DSN parameters of RCPT (RFC 3461), which the upstream must receive unchanged."""
    return f" NOTIFY={notify} ORCPT=rfc822;Was-{recipient}" if notify else ""
