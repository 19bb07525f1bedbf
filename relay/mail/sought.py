"""What an operator looks for: words, each a part of an id, a Subject or an address of a message.  Pure.

One matcher, for the queue and for what ended.  Case and Unicode's forms make no difference, and of an
address neither does its spelling (`comparable`).  Angle brackets around a word are left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from relay.mail.address import comparable, folded


@dataclass(frozen=True, slots=True)
class Sought:
    words: tuple[tuple[str, str], ...]
    """Each as any text is compared, and as an address is."""

    @property
    def text(self) -> str:
        return " ".join(word for word, _ in self.words)

    def is_in(self, words: str) -> bool:
        """Return whether all of it is in the words of a message (`words_of`)."""
        return all(word in words or address in words for word, address in self.words)


def words_of(names: Iterable[str | None], addresses: Iterable[str]) -> str:
    """Return what a message is found by: its ids and Subject, and its addresses."""
    addresses = list(addresses)
    return "\n".join([*map(folded, [*filter(None, names), *addresses]), *map(comparable, addresses)])


@lru_cache(16)
def sought(text: str) -> Sought:
    """Raise ValueError where nothing is left to look for, or octets that are no text."""
    words = [word for each in text.split() if (word := each.strip("<>"))]
    if not words or any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError(
            "expected an address, a Message-ID, a queue id or words of a Subject, or a part of one"
        )
    return Sought(tuple((folded(word), comparable(word)) for word in words))
