"""Sends a folder of raw messages through a relay in every way, and compares the bytes that arrive.

    python -m tests.system.corpus [DIR]

Without DIR it sends the mail that Python's own test suite ships.  It adds the messages of `OWN`, so that each
rule below is tested.  `relay sendmail` gets only these and a few drawn ones, since each costs the start of a
program.  Messages that an upstream cannot carry are tested in tests/unit/sender.

Each message arrives once, or is refused and does not arrive.  It has one Received: field on top, and below it
the content as sent, with lines that end in CRLF.  But:
- a first line `From ` or `>From ` becomes the field `X-Mailbox-Line:`, and an empty line comes before a first
  line that begins with a blank;
- `relay sendmail` and `relay drain` also change what docs/commands.md says of each;
- a CR alone is refused over SMTP (the programs make it CRLF); NUL in the header, and 50 Received:, may be.
Exits 1 on any difference, 2 without messages.
"""

import argparse
import contextlib
import os
import random
import re
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.system.relay import RelayProcess
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import HANG_S
from tests.system.witness import Fate

PATIENCE_S = 60.0
SENDER = "corpus@example.org"
LIMIT = {"messages": 1_000_000, "per": "1m"}
PROGRAMS = 8
"""How many messages of the folder `relay sendmail` gets."""
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
    """The message as the file has it."""

    @property
    def content(self) -> bytes:
        return _ended(re.sub(rb"(?<!\r)\n", b"\r\n", self.octets))

    @property
    def text(self) -> bytes:
        """Return what the programs make of it: each CR, LF and CRLF becomes CRLF."""
        return _begun(_ended(re.sub(rb"\r\n|\r|\n", b"\r\n", self.octets)))

    @property
    def needs_smtputf8(self) -> bool:
        """Return whether its header is UTF-8 beyond ASCII; then its recipient is too."""
        with contextlib.suppress(UnicodeDecodeError):
            return not self.content.partition(b"\r\n\r\n")[0].decode().isascii()
        return False

    def recipient(self, way: str) -> str:
        return f"{'ü' if self.needs_smtputf8 else 'u'}.{way.lower()}.{self.number}@corpus.test"


def _ended(content: bytes) -> bytes:
    return content if not content or content.endswith(b"\r\n") else content + b"\r\n"


# What has to arrive.


def over_smtp(message: Message, arrived: bytes) -> str:
    return _difference(_begun(message.content), arrived)


def by_sendmail(message: Message, arrived: bytes) -> str:
    """Compare; `relay sendmail` adds a missing From, Date or Message-ID on top, and ends the header."""
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
    """Return what is wrong with the refusal; an empty `refusal` means that the message was taken."""
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
    """Return the content with a first line that cannot continue the field above it."""
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


# The ways in.


def hand_over_by_smtp(relay: RelayProcess, messages: Sequence[Message]) -> dict[Message, str]:
    """Hand all over on one connection; return the refused messages, each with its reply."""
    refused = {}
    with (
        socket.create_connection(("127.0.0.1", relay.port), HANG_S) as client,
        client.makefile("rb") as replies,
    ):

        def said(octets: bytes = b"") -> str:
            client.sendall(octets)
            while (line := replies.readline())[3:4] == b"-":
                pass
            return line.decode().rstrip()

        said()
        said(b"EHLO client.test\r\n")
        for message in messages:
            parameters = "" if message.octets.isascii() else " BODY=8BITMIME"
            parameters += " SMTPUTF8" if message.needs_smtputf8 else ""
            recipient = message.recipient("SMTP")
            lines = (f"MAIL FROM:<{SENDER}>{parameters}", f"RCPT TO:<{recipient}>", "DATA")
            answers = [said(f"{line}\r\n".encode()) for line in lines]
            if answers[-1].startswith("354"):
                answers = [said(re.sub(rb"(?m)^\.", b"..", message.content) + b".\r\n")]
            bad = [reply for reply in answers if not reply.startswith(("2", "354"))]
            if bad:
                refused[message] = bad[0]
                said(b"RSET\r\n")
    return refused


def hand_over_by_sendmail(relay: RelayProcess, messages: Sequence[Message]) -> dict[Message, str]:
    refused = {}

    def given(message: Message) -> None:
        command = ("sendmail", "-i", "-f", SENDER, message.recipient("sendmail"))
        ran = relay.command(*command, stdin=message.octets)
        if ran.returncode:
            refused[message] = f"exit {ran.returncode}: {ran.stderr.strip()}"

    with ThreadPoolExecutor(os.cpu_count()) as at_once:
        list(at_once.map(given, messages))
    return refused


def hand_over_by_drain(relay: RelayProcess, messages: Sequence[Message]) -> dict[Message, str]:
    """Drain all as one maildir, but alone each message that begins with a blank.

    Such a first line would continue the last field of the envelope above it.
    """
    refused = {}

    def drained(maildir: Path, given: Sequence[Message], *options: str, on_top: bool) -> None:
        for folder in ("cur", "new", "tmp"):
            (maildir / folder).mkdir(parents=True)
        for each in given:
            envelope = f"Return-Path: <{SENDER}>\nDelivered-To: {each.recipient('drain')}\n" if on_top else ""
            (maildir / "new" / f"{each.number}.corpus").write_bytes(envelope.encode() + each.octets)
        ran = relay.command("drain", *options, str(maildir))
        for each in given:
            if (maildir / "new" / f"{each.number}.corpus").exists():
                left = re.search(rf"new/{each.number}\.corpus: left, (.*)", ran.stderr)
                refused[each] = f"exit {ran.returncode}: {left[1] if left else ran.stderr}"

    alone = [each for each in messages if each.octets.startswith((b" ", b"\t"))]
    drained(relay.folder / "maildir", [each for each in messages if each not in alone], on_top=True)
    for each in alone:
        to = ("--sender", SENDER, "--to", each.recipient("drain"))
        drained(relay.folder / f"maildir-{each.number}", [each], *to, on_top=False)
    return refused


HAND_OVER = {
    "SMTP": hand_over_by_smtp,
    "sendmail": hand_over_by_sendmail,
    "drain": hand_over_by_drain,
}


def through(given: Mapping[str, Sequence[Message]]) -> Iterator[tuple[str, int, list[str]]]:
    """Hand messages over in each way; yield with each how many were refused, and what is wrong."""
    with tempfile.TemporaryDirectory() as name, StrictSmarthost(Path(name), LIMIT, seed=0) as upstream:
        isp = upstream.upstream(limits=[LIMIT])
        with RelayProcess(Path(name), {"isp": isp}, listen={"max_errors": 100_000}) as relay:
            refused = {way: HAND_OVER[way](relay, messages) for way, messages in given.items()}
            with contextlib.suppress(TimeoutError):  # the differences are told below
                relay.wait_until_empty(within_s=PATIENCE_S)
    arrived = arrived_at(upstream)
    for way, messages in given.items():
        amiss = [
            f"{each.name}: {what}"
            for each in messages
            if (what := what_is_amiss(way, each, refused[way].get(each, ""), arrived))
        ]
        yield way, len(refused[way]), amiss


def arrived_at(upstream: StrictSmarthost) -> dict[str, list[bytes]]:
    arrived: dict[str, list[bytes]] = {}
    for seen in upstream.seen():
        if seen.fate is Fate.RELAYED:
            for recipient in seen.recipients:
                arrived.setdefault(recipient, []).append(seen.content)
    return arrived


def what_is_amiss(
    way: str, message: Message, refusal: str, all_that_arrived: Mapping[str, Sequence[bytes]]
) -> str:
    arrived = all_that_arrived.get(message.recipient(way), [])
    if amiss := wrongly_answered(way, message, refusal):
        return amiss
    if refusal:
        return "was refused, and arrived" if arrived else ""
    if len(arrived) != 1:
        return f"arrived {len(arrived)} times"
    content = below_received(arrived[0])
    return "has no Received: of ours on top" if content is None else WAYS[way](message, content)


def shipped_with_python() -> Path | None:
    libraries = (Path(sysconfig.get_path("stdlib")), *sorted(Path("/usr/lib").glob("python3*")))
    folders = [library / "test" / "test_email" / "data" for library in libraries]
    return next((folder for folder in folders if any(folder.glob("msg_*.txt"))), None)


def main() -> int:
    parser = argparse.ArgumentParser(description="Send raw messages through a relay in every way.")
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=shipped_with_python())
    folder: Path | None = parser.parse_args().folder
    files = sorted(filter(Path.is_file, folder.rglob("*"))) if folder else []
    if not files:
        why = f"no file in {folder}" if folder else "this Python came without its test suite"
        sys.stderr.write(f"{why}: nothing to send\n")
        return 2
    octets_of = [*((str(path), path.read_bytes()) for path in files), *OWN.items()]
    messages = [Message(number, name, octets) for number, (name, octets) in enumerate(octets_of)]
    theirs, own = messages[: len(files)], messages[len(files) :]
    sys.stdout.write(f"{len(theirs)} messages of {folder}, and {len(own)} of this program\n")
    given = dict.fromkeys(WAYS, messages)
    given["sendmail"] = own + random.Random(0).sample(theirs, min(PROGRAMS, len(theirs)))
    differences = 0
    for way, refused, different in through(given):
        sys.stdout.write(
            f"{way:9} {len(given[way]):5} sent {refused:5} refused {len(different):5} different\n"
        )
        sys.stdout.writelines(f"    {each}\n" for each in different)
        differences += len(different)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
