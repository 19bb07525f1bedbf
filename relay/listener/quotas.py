"""How much of the queue one owner may have: a user, or a client that needs no login.  Pure.

The sender counts; about once a second it tells who has more than half of what it may.  Whoever is not
told of has at most half.  Guarantees: between two tellings no owner gets more in than was left at the
first of them, and a message for each of its connections.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from relay.policy.model import Listen


class Owner(NamedTuple):
    """Whose a message is: of the user who logged in, wherever from; else of the client."""

    user: str
    client: str
    """As envelopes have it; empty where a user logged in."""

    @classmethod
    def of(cls, user: str | None, client: str) -> "Owner":
        return cls(user, "") if user else cls("", client)


Held = Mapping[Owner, int]


class Quotas:
    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        mosts = [rule.max_queued for rule in listen.users.values()] + [listen.max_queued_per_client]
        self._least = min((most for most in mosts if most is not None), default=None)
        self.is_any = self._least is not None
        self._held: Held = {}
        self._taken: Counter[Owner] = Counter()

    def most(self, owner: Owner) -> int | None:
        return self._listen.most_queued(owner.user or None)

    def worth_telling(self, held: Iterable[tuple[tuple[str, str], int]]) -> Held:
        """Return those who have more than half of what they may."""
        # Most have little, and are many: they cost a comparison.
        floor = (self._least or 0) // 2
        found = [(Owner(*owner), count) for owner, count in held if count > floor]
        return {owner: count for owner, count in found if count > (self.most(owner) or count * 2) // 2}

    def told(self, held: Held) -> None:
        """Go by what `worth_telling` returned."""
        self._held = held
        self._taken.clear()

    def is_full(self, owner: Owner) -> bool:
        most = self.most(owner) if self.is_any else None
        return most is not None and self._taken[owner] >= most - self._held.get(owner, most // 2)

    def took(self, owner: Owner) -> None:
        if self.is_any and self.most(owner) is not None:
            self._taken[owner] += 1
