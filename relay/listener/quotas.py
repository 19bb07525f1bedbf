"""How much of the queue one owner may have: a user, or a client that needs no login.  Pure.

The sender counts; about once a second it tells who has as much as it may.
"""

from collections.abc import Iterable
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


class Quotas:
    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        mosts = [rule.max_queued for rule in listen.users.values()] + [listen.max_queued_per_client]
        self.is_any = any(most is not None for most in mosts)
        self._full: set[Owner] = set()

    def worth_telling(self, held: Iterable[tuple[tuple[str, str], int]]) -> set[Owner]:
        """Return those who may have no more."""
        full: set[Owner] = set()
        for (user, client), count in held:
            most = self._listen.most_queued(user or None)
            if most is not None and count >= most:
                full.add(Owner(user, client))
        return full

    def told(self, full: set[Owner]) -> None:
        """Go by what `worth_telling` returned."""
        self._full = full

    def is_full(self, owner: Owner) -> bool:
        return owner in self._full
