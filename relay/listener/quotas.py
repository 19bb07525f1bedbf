"""How much of the queue one owner may have: a user, or a client that needs no login.  Pure.

The sender counts; about once a second it tells who has as much as it may.
"""

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
        self._full: Held = {}

    def worth_telling(self, held: Iterable[tuple[tuple[str, str], int]]) -> Held:
        """Return those who may have no more."""
        # Most have little, and are many: they cost a comparison.
        found = [(Owner(*owner), count) for owner, count in held if count >= (self._least or 0)]
        return {owner: count for owner, count in found if (most := self._most(owner)) and count >= most}

    def _most(self, owner: Owner) -> int | None:
        return self._listen.most_queued(owner.user or None)

    def told(self, full: Held) -> None:
        """Go by what `worth_telling` returned."""
        self._full = full

    def is_full(self, owner: Owner) -> bool:
        return owner in self._full
