"""What only listings show of queued messages, small: a text each, packed together in pages.  Pure.

A text alone takes 150 bytes, of which 100 are a Message-ID and an address much like those before it.
ROWS of them together are packed into a third of that; to read one unpacks its page, some 20 microseconds,
and reading on in the order in which they came finds the page at hand.

The last YOUNG pages are not packed yet: mail that soon leaves costs no packing.

Guarantees: a row is what was kept until it is dropped, whichever thread reads it.  A page whose messages
are nearly all gone is packed anew without their texts, so that the few that stay do not keep them.
Assumes: one thread keeps and drops; a row is dropped once.
"""

import json
import zlib
from collections import deque
from functools import lru_cache

ROWS = 32
"""Texts in a page: more of them are hardly smaller, and keep more while one of them stays."""
YOUNG = 128
"""Full pages that are not packed: 4,096 rows, some 600 KB where Message-IDs and addresses are usual."""
_PACKED_ANEW_AT = (ROWS // 4, ROWS // 16)
"""With so many rows left."""
_QUICKEST = 1
_PAGES_AT_HAND = 16
_NONE: list[str] = []
DROPPED = "\n"
"""In the place of a text."""


class Page:
    """Texts that came one after the other, ROWS of them."""

    __slots__ = ("_dropped", "_packed", "_texts")

    def __init__(self) -> None:
        self._texts: list[str] = []
        """Until they are packed."""
        self._packed: bytes | None = None
        self._dropped = 0
        """A bit for each row."""

    @property
    def is_full(self) -> bool:
        return self._packed is not None or len(self._texts) == ROWS

    def add(self, text: str) -> int:
        """Return the row of a text; the page must not be full."""
        self._texts.append(text)
        return len(self._texts) - 1

    def pack(self) -> None:
        # In this order: another thread may read meanwhile.
        self._packed = _packed(self._texts, self._dropped)
        self._texts = _NONE

    def text(self, row: int) -> str:
        """Return a text; of a row that was dropped, just now too, it may be DROPPED."""
        texts, packed = self._texts, self._packed
        return (texts if packed is None else _unpacked(packed))[row]

    def drop(self, row: int) -> None:
        self._dropped |= 1 << row
        if self._packed is None:
            self._texts[row] = DROPPED
        elif ROWS - self._dropped.bit_count() in _PACKED_ANEW_AT:
            self._packed = _packed(_unpacked(self._packed), self._dropped)


class Pages:
    def __init__(self) -> None:
        self._open = Page()
        self._young: deque[Page] = deque()
        """Full ones, the oldest first."""

    def keep(self, text: str) -> tuple[Page, int]:
        """Return where a text is kept from now on: a page, and the row there."""
        if self._open.is_full:
            self._young.append(self._open)
            self._open = Page()
            if len(self._young) > YOUNG:
                self._young.popleft().pack()
        return self._open, self._open.add(text)


def _packed(texts: list[str], dropped: int) -> bytes:
    left = [DROPPED if dropped >> row & 1 else text for row, text in enumerate(texts)]
    return zlib.compress(json.dumps(left).encode(), _QUICKEST)


@lru_cache(_PAGES_AT_HAND)
def _unpacked(packed: bytes) -> list[str]:
    texts: list[str] = json.loads(zlib.decompress(packed))
    return texts
