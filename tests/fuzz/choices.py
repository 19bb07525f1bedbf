"""Builds structured input from bytes: the bytes are choices, and a changed byte is another choice."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

_MOST_PIECES = 12
_MOST_EQUAL_PIECES = 300
_MOST_EDITS = 4


class Choices:
    """Reads numbers and octets in the order of the input; after its end they are 0 and empty."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def number(self, below: int) -> int:
        """Return a number from 0 to `below` - 1; it takes as many octets as that needs."""
        size = max(1, ((below - 1).bit_length() + 7) // 8)
        return int.from_bytes(self._take(size), "big") % below

    def pick(self, among: Sequence[T]) -> T:
        return among[self.number(len(among))]

    def yes(self) -> bool:
        return self.number(2) == 1

    def octets(self, most: int = 64) -> bytes:
        return self._take(self.number(most + 1))

    def text(self, most: int = 24) -> str:
        return self.octets(most).decode("utf-8", "replace")

    def rest(self) -> bytes:
        """Return all octets that are left."""
        return self._take(len(self._raw))

    def pieces(self, octets: bytes) -> list[bytes]:
        """Cut octets at places from the input; pieces may be empty."""
        cuts = [self.number(len(octets) + 1) for _ in range(self.number(_MOST_PIECES))]
        edges = [0, *sorted(cuts), len(octets)]
        return [octets[start:end] for start, end in pairwise(edges)]

    def rest_in_pieces(self) -> list[bytes]:
        """Return all octets that are left, cut into equal pieces; the next octet says how long."""
        step = 1 + self.number(128)
        octets = self.rest()
        step = max(step, len(octets) // _MOST_EQUAL_PIECES)
        return [octets[start : start + step] for start in range(0, len(octets), step)]

    def spoiled(self, valid: bytes, tokens: Sequence[bytes]) -> bytes:
        for _ in range(self.number(2 * _MOST_EDITS) - _MOST_EDITS + 1):
            valid = self._edited(valid, tokens)
        return valid

    def _edited(self, valid: bytes, tokens: Sequence[bytes]) -> bytes:
        kind, at = self.number(7), self.number(len(valid) + 1)
        length = self.number(2 ** (1 + self.number(10)))
        before, span, after = valid[:at], valid[at : at + length], valid[at + length :]
        match kind:
            case 0:
                return before  # cut off
            case 1:
                return before + after  # a hole
            case 2:
                return before + span + span + after  # twice
            case 3:
                return before + bytes(len(span)) + after  # a page of zeros
            case 4:
                return before + bytes(octet ^ (1 << self.number(8)) for octet in span[:1]) + valid[at + 1 :]
            case 5:
                return before + self.octets(16) + after
            case _:
                return before + self.pick(tokens) + valid[at:]

    def _take(self, size: int) -> bytes:
        taken = self._raw[self._at : self._at + size]
        self._at += len(taken)
        return taken
