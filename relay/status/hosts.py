"""Which host holds what of a queue and of histories in PostgreSQL, as the databases of a policy say."""

from relay.policy.database import DatabaseLogin
from relay.policy.model import Policy
from relay.status.snapshot import HostStatus


def databases_of(policy: Policy) -> dict[str, DatabaseLogin]:
    histories = (policy.history_of(name).database for name in policy.upstreams)
    return {each.postgresql: each for each in (policy.storage, *histories) if each and each.postgresql}


def hosts_in(policy: Policy) -> tuple[HostStatus, ...]:
    """Ask each database; one that cannot be asked is left out: queue and history tell of it."""
    from relay.spool.database import DatabaseError  # noqa: PLC0415 - it needs an extra
    from relay.spool.database.connection import database_of, once  # noqa: PLC0415 - as above
    from relay.spool.database.schema import hosts_of  # noqa: PLC0415 - as above

    places, found = {name: policy.history_of(name) for name in policy.upstreams}, []
    for url, login in databases_of(policy).items():
        try:
            with once(database_of(login)) as connection:
                rows = hosts_of(connection)
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
