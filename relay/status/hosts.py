"""The hosts that share a queue or histories in PostgreSQL, as the databases of a policy list them."""

from typing import TYPE_CHECKING

from relay.policy.database import DatabaseLogin
from relay.policy.model import Policy
from relay.status.snapshot import HostStatus

if TYPE_CHECKING:
    from relay.spool.database.connection import LastingConnection


def databases_of(policy: Policy) -> dict[str, DatabaseLogin]:
    histories = (policy.history_of(name).database for name in policy.upstreams)
    return {each.postgresql: each for each in (policy.storage, *histories) if each and each.postgresql}


class Hosts:
    """Queries each database of a policy, on a connection that stays open.  One thread at a time."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._lasting: dict[str, LastingConnection] = {}

    def look(self) -> tuple[HostStatus, ...]:
        """Skip a database that cannot be queried: the queue and the history report it."""
        from relay.spool.database import DatabaseError  # noqa: PLC0415 - it needs an extra
        from relay.spool.database.connection import LastingConnection, database_of  # noqa: PLC0415 - as above
        from relay.spool.database.schema import hosts_of  # noqa: PLC0415 - as above

        places, found = {name: self.policy.history_of(name) for name in self.policy.upstreams}, []
        for url, login in databases_of(self.policy).items():
            try:
                with self._lasting.setdefault(url, LastingConnection(database_of(login))).begin() as asked:
                    rows = hosts_of(asked)
            except DatabaseError:
                continue
            for row in rows:
                ages = {
                    name: row.ages[place.account]
                    for name, place in places.items()
                    if place.database and place.database.postgresql == url and place.account in row.ages
                }
                found.append(HostStatus(row.host, row.claimed, row.lease_seconds, ages))
        return tuple(found)

    def close(self) -> None:
        for each in self._lasting.values():
            each.close()
