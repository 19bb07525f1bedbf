"""The maildir of an upstream: each message that arrived, byte for byte, with its envelope."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.system.waiting import HANG_S, wait_for_change

_FIELD = re.compile(rb"(Return-Path|X-Original-To|Delivered-To): (.*)\n")
# One field with its folded lines.
_RECEIVED = re.compile(rb"Received: .*\n(?:[ \t].*\n)*")


@dataclass(frozen=True, slots=True)
class Arrived:
    """One message in one recipient's mailbox."""

    reverse_path: str
    recipient: str
    content: bytes
    """The content that the relay sent, with CRLF as on the wire."""


class Mailbox:
    """A folder `new/` that Postfix's virtual(8) delivers to, one file per recipient and message."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def arrived(self) -> list[Arrived]:
        return [_read(path.read_bytes()) for path in self._paths()]

    def wait_for(self, count: int, *, within_s: float = HANG_S) -> list[Arrived]:
        """Return the messages once at least `count` arrived.  Raises TimeoutError."""
        try:
            wait_for_change(
                lambda: len(self._paths()) >= count or None, self.folder / "new", within_s=within_s
            )
        except TimeoutError:
            raise TimeoutError(
                f"{len(self._paths())} of {count} messages arrived in {within_s:g} s"
            ) from None
        return self.arrived()

    def _paths(self) -> list[Path]:
        return list((self.folder / "new").iterdir())


def _read(text: bytes) -> Arrived:
    fields: dict[bytes, bytes] = {}
    while field := _FIELD.match(text):
        fields[field[1]] = field[2]
        text = text[field.end() :]
        if field[1] == b"Delivered-To":  # virtual(8) writes it last
            break
    received = _RECEIVED.match(text)
    assert received is not None, f"no Received: header of the upstream on top of {text[:200]!r}"
    content = text[received.end() :].replace(b"\n", b"\r\n")
    reverse_path = fields[b"Return-Path"].decode().removeprefix("<").removesuffix(">")
    return Arrived(reverse_path, fields[b"X-Original-To"].decode(), content)
