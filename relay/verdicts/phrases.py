"""Phrases as an operator writes them, looked for in a reply.  Pure; takes time in proportion to both."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence

GAP = 80
"""How many characters a `*` stands for at most."""


class Phrases:
    """Any of some phrases; `*` in one is at most GAP characters.  Time: parts times text."""

    def __init__(self, phrases: Iterable[str], *, begin_words: bool = False) -> None:
        """Take phrases in lower case, with one space between words.

        With `begin_words` a phrase begins where a word does: `mail quota` is not in `outmail quota`.
        """
        self._phrases = tuple(tuple(phrase.split("*")) for phrase in phrases)
        self._begin_words = begin_words

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Phrases):
            return NotImplemented
        return (self._phrases, self._begin_words) == (other._phrases, other._begin_words)

    def __hash__(self) -> int:
        return hash(self._phrases)

    def are_in(self, text: str) -> bool:
        return any(
            all(part in text for part in parts) and _is_in(text, parts, begins_word=self._begin_words)
            for parts in self._phrases
        )


def _is_in(text: str, parts: Sequence[str], *, begins_word: bool) -> bool:
    ends = _ends(text, parts[0])
    if begins_word and parts[0][:1].isalnum():
        starts = ((end - len(parts[0]), end) for end in ends)
        ends = [end for start, end in starts if not text[start - 1 : start].isalnum()]
    for part in parts[1:]:
        # Of the ends that are not behind its start the last is the nearest: no other need be looked at.
        starts = ((end - len(part), end) for end in _ends(text, part))
        ends = [
            end for start, end in starts if (i := bisect_right(ends, start)) and start - ends[i - 1] <= GAP
        ]
    return len(ends) > 0


def _ends(text: str, part: str) -> list[int]:
    return [found.start() + len(part) for found in re.finditer(f"(?={re.escape(part)})", text)]
