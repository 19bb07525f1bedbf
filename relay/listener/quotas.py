"""Limits the queued messages of one owner: a user, or a client without a login.  Pure.

The sender's process counts messages; about once a second it tells listeners which owners are at the limit.
"""

from collections.abc import Iterable
from typing import NamedTuple

from relay.policy.model import Listen


class Owner(NamedTuple):
    """The owner of a message: the user who logged in, from any client; else the client."""

    user: str
    client: str
    """The client as in envelopes; empty if a user logged in."""

    @classmethod
    def of(cls, user: str | None, client: str) -> "Owner":
        return cls(user, "") if user else cls("", client)


class Quotas:
    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        mosts = [rule.max_queued for rule in listen.users.values()] + [listen.max_queued_per_client]
        self.has_limits = any(most is not None for most in mosts)
        self.full: set[Owner] = set()
        """The owners at their limit, as the sender's process told last."""

    def owners_at_limit(self, held: Iterable[tuple[tuple[str, str], int]]) -> set[Owner]:
        """Return the owners that are at their limit.  `held` counts messages by user and client."""
        return {
            Owner(user, client)
            for (user, client), count in held
            if (most := self._listen.most_queued(user or None)) is not None and count >= most
        }
