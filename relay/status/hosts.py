"""The hosts that share a queue or histories in PostgreSQL, as the databases of a policy list them."""

from relay.policy.model import Policy
from relay.policy.units import DatabaseLogin
from relay.status.snapshot import HostStatus


def databases_of(policy: Policy) -> dict[str, DatabaseLogin]:
    histories = (policy.history_of(name).database for name in policy.upstreams)
    return {each.postgresql: each for each in (policy.storage, *histories) if each and each.postgresql}


def listed_hosts(policy: Policy) -> tuple[HostStatus, ...]:
    """Query each database; skip one that cannot be queried: the queue and the history report it."""
    found: list[HostStatus] = []
    for url, login in databases_of(policy).items():
        from relay.spool.database import DatabaseError  # noqa: PLC0415 - it needs an extra
        from relay.spool.database.connection import database_of, once  # noqa: PLC0415 - as above
        from relay.spool.database.schema import hosts_of  # noqa: PLC0415 - as above

        places = ((name, policy.history_of(name)) for name in policy.upstreams)
        names = {name: its.account for name, its in places if its.database and its.database.postgresql == url}
        try:
            with once(database_of(login)) as connection:
                rows = hosts_of(connection)
        except DatabaseError:
            continue
        for host, claimed, lease_seconds, ages in rows:
            used = {name: ages[account] for name, account in names.items() if account in ages}
            found.append(HostStatus(host, claimed, lease_seconds, used))
    return tuple(found)
