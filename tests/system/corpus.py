"""Sends a folder of raw messages through a relay, in every way, and compares the bytes that arrive.

    python tests/system/corpus.py [--programs N] [--seed N] [DIR]

Without DIR: the mail that Python's own test suite ships.  A few messages of this file come along, so that
each rule below has one.  Each way in (SMTP, `relay sendmail`, `relay drain`) meets each of three upstreams,
where the relay logs in: one offers all, one no SMTPUTF8, one no 8BITMIME either.  `relay sendmail`
takes only N drawn messages (default 8), and once those of this file: each is the start of a program.  Nothing
of relay is imported: this is SMTP, the command line and the upstream's ledger.

What is right.  A client ends its lines in CRLF.  Exactly one Received: field comes on top, and then:
- the content as the client sent it; but a first line `From ` or `>From ` becomes the field `X-Mailbox-Line:`,
  and an empty line comes before a first line that begins with a blank;
- by `relay sendmail` and `relay drain` also what docs/commands.md says of each;
- a CR alone is refused over SMTP (the programs make it CRLF); NUL in the header, and 50 Received:, may be;
- what the upstream cannot carry (RFC 6152, RFC 6531) waits unchanged, and arrives once the upstream can.
Each message arrives once, or is refused and does not arrive.  Exit 1 on any difference, 2 without messages.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
import random
import re
import socket
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
PATIENCE_S = 60.0
SENDER = "corpus@example.org"
PASSWORD = "not a secret"
OFFERS = ("PIPELINING", "8BITMIME", "SMTPUTF8")
UPSTREAMS = {"offers all": OFFERS, "no SMTPUTF8": OFFERS[:2], "no 8BITMIME": OFFERS[:1]}
OWN = {
    "8-bit": b"Subject: x\nContent-Type: text/plain; charset=utf-8\n\ngr\xc3\xbc\xc3\x9fe\n",
    "8-bit, of no charset": b"Subject: x\n\n\x80\xff\xfe\n",
    "UTF-8 header": "From: jürgen@example.org\nSubject: grüße\n\nx\n".encode(),
    "dots": b"Subject: x\n\n.\n..\n.x\n...\n.\n",
    "no final newline": b"Subject: x\n\nx",
    "long lines": b"Subject: x\nX-Long: " + b"y" * 1500 + b"\n\n" + b"z" * 100_000 + b"\n",
    "long": b"Subject: x\n\n" + b"0123456789abcdef\n" * 40_000,
    "no header": b"just a text\nof two lines\n",
    "no body": b"Subject: x\n",
    "an empty line first": b"\nx\n",
    "nothing": b"",
    "mbox": b"From a@example.org Thu Jan  1 00:00:00 1970\nSubject: x\n\nFrom here\n",
    "a blank first": b" folded\nSubject: x\n\nx\n",
    "Bcc": b"From: a@example.org\nBcc: b@example.org,\n\tc@example.org\nSubject: x\n\nBcc: stays\n",
    "CR alone": b"Subject: x\n\na\rb\n",
    "NUL in the body": b"Subject: x\n\na\0b\n",
}


@dataclass(frozen=True)
class Message:
    number: int
    name: str
    octets: bytes
    """As the file has them."""

    @property
    def content(self) -> bytes:
        """Return what a client says over SMTP."""
        return _ended(re.sub(rb"(?<!\r)\n", b"\r\n", self.octets))

    @property
    def text(self) -> bytes:
        """Return what the programs make of it: each end of a line is CRLF."""
        return _begun(_ended(re.sub(rb"\r\n|\r|\n", b"\r\n", self.octets)))

    @property
    def needs_smtputf8(self) -> bool:
        """Return whether its header is UTF-8; then its recipient is too."""
        with contextlib.suppress(UnicodeDecodeError):
            return not self.content.partition(b"\r\n\r\n")[0].decode().isascii()
        return False

    def recipient(self, way: str) -> str:
        return f"{'ü' if self.needs_smtputf8 else 'u'}.{way.lower()}.{self.number}@corpus.test"

    def fits(self, offers: Sequence[str]) -> bool:
        if self.needs_smtputf8 and "SMTPUTF8" not in offers:
            return False
        return self.octets.isascii() or "8BITMIME" in offers


@dataclass
class Tally:
    """Of one way in to one upstream."""

    refused: dict[Message, str] = field(default_factory=dict)
    taken: list[Message] = field(default_factory=list)
    waited: int = 0
    different: list[str] = field(default_factory=list)


def _ended(content: bytes) -> bytes:
    return content if not content or content.endswith(b"\r\n") else content + b"\r\n"


# What is right.


def over_smtp(message: Message, arrived: bytes) -> str:
    return _difference(_begun(message.content), arrived)


def by_sendmail(message: Message, arrived: bytes) -> str:
    """Compare; From, Date and Message-ID are added on top, and the header gets its end."""
    fields, rest = _parted(message.text)
    names = {_name(each) for each in fields}
    for name in (b"From", b"Date", b"Message-ID"):
        if name.lower() not in names:
            found = re.match(name + rb": [^\r\n]+\r\n", arrived)
            if found is None:
                return f"{name.decode()} is missing"
            arrived = arrived[found.end() :]
    end = b"" if rest.startswith(b"\r\n") else b"\r\n"
    return _difference(_without_bcc(fields) + end + rest, arrived)


def by_drain(message: Message, arrived: bytes) -> str:
    fields, rest = _parted(message.text)
    return _difference(_without_bcc(fields) + rest, arrived)


WAYS: Mapping[str, Callable[[Message, bytes], str]] = {
    "SMTP": over_smtp,
    "sendmail": by_sendmail,
    "drain": by_drain,
}


def wrongly_answered(way: str, message: Message, refusal: str) -> str:
    """Return what is wrong with its being refused, or taken (then `refusal` is empty)."""
    has_lone_cr = way == "SMTP" and re.search(rb"\r(?!\n)", message.content) is not None
    if not refusal:
        return "a CR alone was taken" if has_lone_cr else ""
    header = message.content.partition(b"\r\n\r\n")[0]
    may_be = {
        "550 5.6.0": has_lone_cr or b"\0" in header,
        "554 5.4.6": len(re.findall(rb"(?im)^received:", header)) >= 50,
    }
    return "" if any(code in refusal and is_so for code, is_so in may_be.items()) else f"refused: {refusal}"


def _begun(content: bytes) -> bytes:
    """Return content whose first line is not taken for a part of the field above it."""
    if content.startswith((b"From ", b">From ")):
        return b"X-Mailbox-Line: " + content
    return b"\r\n" + content if content.startswith((b" ", b"\t")) else content


def _parted(text: bytes) -> tuple[list[bytes], bytes]:
    """Return the fields of the header, and what follows them."""
    fields = []
    while found := re.match(rb"[!-9;-~]+[ \t]*:[^\n]*\n(?:[ \t][^\n]*\n)*", text):
        fields.append(found[0])
        text = text[found.end() :]
    return fields, text


def _name(header_field: bytes) -> bytes:
    return header_field.partition(b":")[0].strip().lower()


def _without_bcc(fields: Iterable[bytes]) -> bytes:
    return b"".join(each for each in fields if _name(each) not in {b"bcc", b"resent-bcc"})


def _difference(expected: bytes, arrived: bytes) -> str:
    if expected == arrived:
        return ""
    both = enumerate(zip(expected, arrived, strict=False))
    at = next((i for i, (one, other) in both if one != other), min(len(expected), len(arrived)))
    around = slice(max(0, at - 30), at + 30)
    return f"at octet {at}: {expected[around]!r} became {arrived[around]!r}"


def below_received(content: bytes) -> bytes | None:
    """Return what follows the one field that the relay adds; None where that field is not there."""
    found = re.match(rb"Received: from [^\r\n]+\r\n\tby relay\.test with [^\r\n]+\r\n\t[^\r\n]+\r\n", content)
    return content[found.end() :] if found else None


# The upstream.


class Upstream:
    """Takes all mail of who logs in, and keeps its content as it was before dots were doubled."""

    def __init__(self, offers: Sequence[str]) -> None:
        self.offers = offers
        self.arrived: dict[str, list[bytes]] = {}
        """By recipient."""
        self.faults: list[str] = []
        self.says: dict[str, bytes] = {}
        """By recipient: what it is refused with."""
        self._sessions: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=1 << 28)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            await self.hang_up()

    async def hang_up(self) -> None:
        sessions = list(self._sessions)
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        try:
            await self._session(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._sessions.discard(task)
            writer.close()

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_known, envelope = False, [""]
        writer.write(b"220 upstream.test ESMTP\r\n")
        while True:
            line = (await reader.readuntil(b"\n")).rstrip(b"\r\n").decode("utf-8", "surrogateescape")
            verb = line.partition(" ")[0].upper()
            reply = "250 2.0.0 ok"
            if verb == "EHLO":
                reply = (
                    "".join(f"250-{each}\r\n" for each in ("upstream.test", *self.offers)) + "250 AUTH PLAIN"
                )
            elif verb == "AUTH":
                is_known = line.split()[-1] == base64.b64encode(f"\0corpus\0{PASSWORD}".encode()).decode()
                reply = "235 2.7.0 welcome" if is_known else "535 5.7.8 no"
            elif verb == "MAIL":
                envelope = [line]
            elif verb == "RCPT" and (said := self.says.get(_address(line))):
                writer.write(said)
                continue
            elif verb == "RCPT":
                envelope.append(line)
            elif verb == "DATA":
                writer.write(b"354 go on\r\n")
                stuffed = b"\r\n" + await reader.readuntil(b"\n.\r\n")
                while not stuffed.endswith(b"\r\n.\r\n"):
                    stuffed += await reader.readuntil(b"\n.\r\n")
                content = stuffed[2:-3].replace(b"\r\n.", b"\r\n").removeprefix(b".")
                self._take(envelope, content, is_known=is_known)
            elif verb == "QUIT":
                writer.write(b"221 2.0.0 bye\r\n")
                return
            writer.write(reply.encode() + b"\r\n")

    def _take(self, envelope: Sequence[str], content: bytes, *, is_known: bool) -> None:
        mail, *recipients = envelope
        if not is_known:
            self.faults.append(f"mail without a login: {envelope}")
        for extension in ("8BITMIME", "SMTPUTF8"):
            if extension in mail and extension not in self.offers:
                self.faults.append(f"{extension} is not offered: {envelope}")
        if not content.isascii() and "BODY=8BITMIME" not in mail:
            self.faults.append(f"8-bit content is not announced: {envelope}")
        for each in recipients:
            self.arrived.setdefault(_address(each), []).append(content)


def _address(command: str) -> str:
    return command.partition("<")[2].partition(">")[0]


# The relay, and the ways into it.


class Relay:
    """A relay in a folder of its own."""

    def __init__(self, folder: Path, upstream_port: int, **more: object) -> None:
        """Take `more` sections of a policy."""
        self.folder = folder
        self._more = more
        self.port = 0
        self._upstream_port = upstream_port
        self._surroundings = os.environ | {
            "RELAY_POLICY": str(folder / "policy.yaml"),
            "CORPUS_PASSWORD": PASSWORD,
            "PYTHONPATH": str(PROJECT),
        }

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Relay"]:
        self.port = free_port()
        listen = {"address": f"127.0.0.1:{self.port}", "clients": ["127.0.0.0/8"], "max_errors": 100_000}
        upstream = {
            "host": "127.0.0.1",
            "port": self._upstream_port,
            "tls": "none",
            "auth": {"user": "corpus", "password_env": "CORPUS_PASSWORD"},
            "limits": [{"messages": 1_000_000, "per": "1m"}],
        }
        policy = {
            "spool": "./spool",
            "listen": [listen],
            "hostname": "relay.test",
            "upstreams": {"isp": upstream},
            **self._more,
        }
        (self.folder / "policy.yaml").write_text(json.dumps(policy))
        with (self.folder / "log").open("wb") as log:
            relay = await self._started("run", stderr=log.fileno())
            try:
                if not await comes_true(lambda: self._greets(relay)):
                    raise SystemExit("the relay does not greet")
                yield self
            finally:
                relay.terminate()
                await relay.wait()

    async def _greets(self, relay: asyncio.subprocess.Process) -> bool:
        if relay.returncode is not None:
            raise SystemExit(f"relay run exited {relay.returncode}:\n{(self.folder / 'log').read_text()}")
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            greeting = await reader.readline()
            writer.close()
            return greeting.startswith(b"220")
        return False

    async def command(self, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        """Return the exit status, what was printed, and what was told on stderr."""
        verb = await self._started(*arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        printed, told = await verb.communicate(stdin)
        return await verb.wait(), printed.decode(), told.decode(errors="replace")

    async def _started(
        self, *arguments: str, stdin: int | None = None, stdout: int | None = None, stderr: int = -1
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "relay", *arguments),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=self._surroundings,
            cwd=self.folder,
        )

    async def queue(self) -> list[dict[str, Any]]:
        exit_status, printed, told = await self.command("queue", "--json")
        if exit_status:
            raise SystemExit(f"relay queue exited {exit_status}: {told}")
        return [json.loads(line) for line in printed.splitlines()]


def free_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
    return port


async def hand_over_by_smtp(relay: Relay, messages: Sequence[Message]) -> dict[Message, str]:
    """Return what is refused, each with its reply; all on one connection."""
    refused = {}
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)

    async def said(octets: bytes = b"") -> str:
        writer.write(octets)
        await writer.drain()
        while (line := await reader.readline())[3:4] == b"-":
            pass
        return line.decode().rstrip()

    await said()
    await said(b"EHLO client.test\r\n")
    for message in messages:
        parameters = "" if message.octets.isascii() else " BODY=8BITMIME"
        parameters += " SMTPUTF8" if message.needs_smtputf8 else ""
        recipient = message.recipient("SMTP")
        lines = (f"MAIL FROM:<{SENDER}>{parameters}", f"RCPT TO:<{recipient}>", "DATA")
        replies = [await said(f"{line}\r\n".encode()) for line in lines]
        if replies[-1].startswith("354"):
            replies = [await said(re.sub(rb"(?m)^\.", b"..", message.content) + b".\r\n")]
        bad = [reply for reply in replies if not reply.startswith(("2", "354"))]
        if bad:
            refused[message] = bad[0]
            await said(b"RSET\r\n")
    await said(b"QUIT\r\n")
    writer.close()
    return refused


async def hand_over_by_sendmail(relay: Relay, messages: Sequence[Message]) -> dict[Message, str]:
    refused = {}
    at_once = asyncio.Semaphore(os.cpu_count() or 1)

    async def given(message: Message) -> None:
        async with at_once:
            command = ("sendmail", "-i", "-f", SENDER, message.recipient("sendmail"))
            exit_status, _, told = await relay.command(*command, stdin=message.octets)
        if exit_status:
            refused[message] = f"exit {exit_status}: {told.strip()}"

    await asyncio.gather(*map(given, messages))
    return refused


async def hand_over_by_drain(relay: Relay, messages: Sequence[Message]) -> dict[Message, str]:
    """One maildir; but a first line with a blank would be taken for a part of the envelope above it."""
    refused = {}

    async def drained(maildir: Path, given: Sequence[Message], *options: str, on_top: bool) -> None:
        for folder in ("cur", "new", "tmp"):
            (maildir / folder).mkdir(parents=True)
        for each in given:
            envelope = f"Return-Path: <{SENDER}>\nDelivered-To: {each.recipient('drain')}\n" if on_top else ""
            (maildir / "new" / f"{each.number}.corpus").write_bytes(envelope.encode() + each.octets)
        exit_status, _, told = await relay.command("drain", *options, str(maildir))
        for each in given:
            if (maildir / "new" / f"{each.number}.corpus").exists():
                left = re.search(rf"new/{each.number}\.corpus: left, (.*)", told)
                refused[each] = f"exit {exit_status}: {left[1] if left else told}"

    alone = [each for each in messages if each.octets.startswith((b" ", b"\t"))]
    await drained(relay.folder / "maildir", [each for each in messages if each not in alone], on_top=True)
    for each in alone:
        to = ("--sender", SENDER, "--to", each.recipient("drain"))
        await drained(relay.folder / f"maildir-{each.number}", [each], *to, on_top=False)
    return refused


HAND_OVER = {
    "SMTP": hand_over_by_smtp,
    "sendmail": hand_over_by_sendmail,
    "drain": hand_over_by_drain,
}


# The whole.


async def through(
    offers: Sequence[str], messages: Sequence[Message], for_sendmail: Sequence[Message]
) -> Mapping[str, Tally]:
    """Return a tally for each way in."""
    upstream = Upstream(offers)
    tallies = {way: Tally() for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        async with upstream.serving() as port, Relay(Path(folder), port).running() as relay:
            for way, tally in tallies.items():
                given = for_sendmail if way == "sendmail" else messages
                tally.refused = await HAND_OVER[way](relay, given)
                tally.taken = [each for each in given if each not in tally.refused]
            await comes_true(lambda: _has_arrived(upstream, tallies, offers))
            await comes_true(lambda: _all_wait_for_an_extension(relay))
            why = {each["recipients"][0]: str(each["reason"]) for each in await relay.queue()}
            for way, tally in tallies.items():
                tally.different += _what_is_amiss_while_some_wait(way, tally, upstream, why)
            upstream.offers = OFFERS
            await upstream.hang_up()
            waiting = "".join(f"{each['queue_id']}\n" for each in await relay.queue())
            await relay.command("queue", "retry", "-", stdin=waiting.encode())
            await comes_true(lambda: _has_arrived(upstream, tallies, OFFERS))
    for way, tally in tallies.items():
        tally.different += _what_is_amiss_in_the_end(way, tally, upstream)
    tallies["SMTP"].different += upstream.faults
    return tallies


async def _has_arrived(upstream: Upstream, tallies: Mapping[str, Tally], offers: Sequence[str]) -> bool:
    wanted = (each.recipient(way) for way, its in tallies.items() for each in its.taken if each.fits(offers))
    return upstream.arrived.keys() >= set(wanted)


async def _all_wait_for_an_extension(relay: Relay) -> bool:
    return all(each["state"] == "deferred" for each in await relay.queue())


async def comes_true(condition: Callable[[], Awaitable[bool]]) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.1)
            return True
    return False


def _what_is_amiss_while_some_wait(
    way: str, tally: Tally, upstream: Upstream, why: Mapping[str, str]
) -> Iterable[str]:
    for each in tally.taken:
        recipient = each.recipient(way)
        if each.fits(upstream.offers):
            if recipient not in upstream.arrived:
                yield f"{each.name}: did not arrive at once: {why.get(recipient)}"
        elif recipient in upstream.arrived:
            yield f"{each.name}: arrived at an upstream that cannot carry it"
        elif "the message needs " not in why.get(recipient, ""):
            yield f"{each.name}: should wait for an upstream that can carry it: {why.get(recipient)}"
        else:
            tally.waited += 1


def _what_is_amiss_in_the_end(way: str, tally: Tally, upstream: Upstream) -> Iterable[str]:
    for message, reply in tally.refused.items():
        if message.recipient(way) in upstream.arrived:
            yield f"{message.name}: was refused, and arrived"
        if amiss := wrongly_answered(way, message, reply):
            yield f"{message.name}: {amiss}"
    for message in tally.taken:
        if amiss := wrongly_answered(way, message, ""):
            yield f"{message.name}: {amiss}"
        arrived = upstream.arrived.get(message.recipient(way), [])
        if len(arrived) != 1:
            yield f"{message.name}: arrived {len(arrived)} times"
            continue
        content = below_received(arrived[0])
        amiss = "has no Received: of ours on top" if content is None else WAYS[way](message, content)
        if amiss:
            yield f"{message.name}: {amiss}"


def shipped_with_python() -> Path | None:
    """Return the folder of the mail that Python's test suite is tested with."""
    libraries = (Path(sysconfig.get_path("stdlib")), *sorted(Path("/usr/lib").glob("python3*")))
    folders = [library / "test" / "test_email" / "data" for library in libraries]
    return next((folder for folder in folders if any(folder.glob("msg_*.txt"))), None)


async def main() -> int:
    parser = argparse.ArgumentParser(description="Send raw messages through a relay in every way.")
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=shipped_with_python())
    parser.add_argument("--programs", metavar="N", type=int, default=8, help="messages for relay sendmail")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    files = sorted(filter(Path.is_file, options.folder.rglob("*"))) if options.folder else []
    if not files:
        why = f"no file in {options.folder}" if options.folder else "this Python came without its test suite"
        sys.stderr.write(f"{why}: nothing to send\n")
        return 2
    read = {str(path.relative_to(options.folder)): path.read_bytes() for path in files} | OWN
    messages = [Message(number, name, octets) for number, (name, octets) in enumerate(read.items())]
    own = messages[len(files) :]
    draws = random.Random(options.seed)
    print(f"{len(files)} messages of {options.folder}, and {len(own)} of this program")  # noqa: T201 - its output
    differences = 0
    for upstream, offers in UPSTREAMS.items():
        by_program = draws.sample(messages, min(options.programs, len(messages)))
        if offers is OFFERS:
            by_program = [*own, *(each for each in by_program if each not in own)]
        for way, tally in (await through(offers, messages, by_program)).items():
            sent = len(tally.taken) + len(tally.refused)
            same = sent - len(tally.refused) - len(tally.different)
            print(  # noqa: T201 - its output
                f"{way:9} {upstream:13} {sent:5} sent {same:5} same ({tally.waited} waited) "
                f"{len(tally.refused):4} refused {len(tally.different):4} different",
                *tally.different,
                sep="\n    ",
                flush=True,
            )
            differences += len(tally.different)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
