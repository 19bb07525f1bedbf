"""An operator's search: words, each a part of an id, a Subject or an address of a message.  Pure.

The queue and the outcomes use this one matcher.  Case and Unicode normalization make no difference, nor does
the spelling of an address (`comparable`).  Angle brackets around a word are ignored.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from relay.mail.address import comparable, folded


@dataclass(frozen=True, slots=True)
class Search:
    words: tuple[tuple[str, str], ...]
    """Each word twice: `folded` as text, and `comparable` as an address."""

    @property
    def text(self) -> str:
        return " ".join(word for word, _ in self.words)

    def matches(self, text: str) -> bool:
        """Return whether every word is in the `searchable_text` of a message."""
        return all(word in text or address in text for word, address in self.words)


def searchable_text(names: Iterable[str | None], addresses: Iterable[str]) -> str:
    """Return the text that a search matches: a message's ids and Subject (`names`), and its addresses."""
    addresses = list(addresses)
    return "\n".join([*map(folded, [*filter(None, names), *addresses]), *map(comparable, addresses)])


@lru_cache(16)
def parse_search(text: str) -> Search:
    """Raise ValueError if no word is left, or if the text has undecodable octets."""
    words = [word for each in text.split() if (word := each.strip("<>"))]
    if not words or any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError(
            "give an address, a Message-ID, a queue id, words of a Subject, or a part of any of these"
        )
    return Search(tuple((folded(word), comparable(word)) for word in words))
