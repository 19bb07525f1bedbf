"""An operator's search: words, each a part of an id, a Subject or an address of a message.  Pure.

The queue and the outcomes use this one matcher.  Case and Unicode normalization make no difference, nor does
the spelling of an address (`comparable`).  Angle brackets around a word are ignored.
"""

from collections.abc import Collection, Iterable
from functools import lru_cache

from relay.mail.address import comparable, folded


@lru_cache(16)
def parse_search(text: str) -> str:
    """Return the words, `folded`.  Raise ValueError if there is none, or for undecodable octets."""
    words = [word for each in text.split() if (word := each.strip("<>"))]
    if not words or any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError(
            "give an address, a Message-ID, a queue id, words of a Subject, or a part of any of these"
        )
    return " ".join(map(folded, words))


def matches(search: str, names: Iterable[str | None], addresses: Collection[str]) -> bool:
    """Return whether each word is in a message's ids and Subject (`names`), or in its addresses."""
    texts = [*map(folded, [*filter(None, names), *addresses]), *map(comparable, addresses)]
    text = "\n".join(texts)
    return all(word in text or comparable(word) in text for word in search.split())
