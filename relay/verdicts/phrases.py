"""Phrases as an operator writes them, looked for in a reply.  Pure; takes time in proportion to both."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 80
"""How many characters a `*` stands for at most."""


@dataclass(frozen=True, slots=True)
class Phrases:
    """Any of some phrases; `*` in one is at most GAP characters.  Time: parts times text."""

    phrases: tuple[str, ...]
    """In lower case, with one space between words."""
    begin_words: bool = False
    """A phrase begins where a word does: `mail quota` is not in `outmail quota`."""

    def are_in(self, text: str) -> bool:
        for phrase in self.phrases:
            parts = phrase.split("*")
            if all(part in text for part in parts) and self._is_in(text, parts):
                return True
        return False

    def _is_in(self, text: str, parts: Sequence[str]) -> bool:
        first, *others = parts
        ends = _ends(text, first)
        if self.begin_words and first[:1].isalnum():
            ends = [end for end in ends if not text[: end - len(first)][-1:].isalnum()]
        for part in others:
            before, ends = ends, []
            for end in _ends(text, part):
                # Of the ends before it the last is the nearest: no other need be looked at.
                start = end - len(part)
                if (index := bisect_right(before, start)) and start - before[index - 1] <= GAP:
                    ends.append(end)
        return len(ends) > 0


def _ends(text: str, part: str) -> list[int]:
    return [found.start() + len(part) for found in re.finditer(f"(?={re.escape(part)})", text)]
