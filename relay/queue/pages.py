"""What only listings show of queued messages, small: a text each, packed together in pages.  Pure.

A text alone takes 150 bytes, of which 100 are a Message-ID and an address much like those before it.
ROWS of them together are packed into a third of that; to read one unpacks its page, some 20 microseconds,
and reading on in the order in which they came finds the page at hand.

Guarantees: a row is what was kept until it is dropped, whichever thread reads it.  A page whose messages
are nearly all gone is packed anew without their texts, so that the few that stay do not keep them.
Assumes: one thread keeps and drops; a row is dropped once.
"""

import json
import zlib
from functools import lru_cache

ROWS = 32
"""Texts in a page: more of them are hardly smaller, and keep more while one of them stays."""
_PACKED_ANEW_AT = (ROWS // 4, ROWS // 16)
"""With so many rows left."""
_QUICKEST = 1
_PAGES_AT_HAND = 16
_NONE: list[str] = []
DROPPED = "\n"
"""In the place of a text."""


class Page:
    """Texts that came one after the other; packed, once there are ROWS of them."""

    __slots__ = ("_dropped", "_packed", "_texts")

    def __init__(self) -> None:
        self._texts: list[str] = []
        """Until it is full."""
        self._packed: bytes | None = None
        """Once it is full."""
        self._dropped = 0
        """A bit for each row."""

    @property
    def is_full(self) -> bool:
        return self._packed is not None

    def add(self, text: str) -> int:
        """Return the row of a text; the page must not be full."""
        self._texts.append(text)
        row = len(self._texts) - 1
        if row == ROWS - 1:
            # In this order: another thread may read meanwhile.
            self._packed = _packed(self._texts, self._dropped)
            self._texts = _NONE
        return row

    def text(self, row: int) -> str:
        """Return a text; of a row that was dropped perhaps DROPPED."""
        texts, packed = self._texts, self._packed
        return (texts if packed is None else _unpacked(packed))[row]

    def drop(self, row: int) -> None:
        self._dropped |= 1 << row
        if self._packed is not None and ROWS - self._dropped.bit_count() in _PACKED_ANEW_AT:
            self._packed = _packed(_unpacked(self._packed), self._dropped)


class Pages:
    def __init__(self) -> None:
        self._open = Page()

    def keep(self, text: str) -> tuple[Page, int]:
        """Return where a text is kept from now on: a page, and the row there."""
        if self._open.is_full:
            self._open = Page()
        return self._open, self._open.add(text)


def _packed(texts: list[str], dropped: int) -> bytes:
    left = [DROPPED if dropped >> row & 1 else text for row, text in enumerate(texts)]
    return zlib.compress(json.dumps(left).encode(), _QUICKEST)


@lru_cache(_PAGES_AT_HAND)
def _unpacked(packed: bytes) -> list[str]:
    texts: list[str] = json.loads(zlib.decompress(packed))
    return texts
