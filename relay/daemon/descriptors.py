"""How many descriptors a process has, and how many of them clients may take.

Every connection of a client costs two: its socket, and the file of a message that is too long
for memory.  All other uses are counted beforehand and reserved: the spool's and the histories'
files, connections to upstreams, the status port.  So clients are refused (421) first.

As a second line of defence no client's socket keeps a number from `ceiling` on.  The kernel gives
each new descriptor the lowest free number (POSIX, open(2)), so the numbers above stay free for the disk.
"""

import contextlib
import resource
from dataclasses import dataclass

from relay.daemon.processes import listener_processes
from relay.policy.model import Listen, Policy
from relay.status.visitors import BOUNDS

BASE = 48
"""The interpreter, loops, standard streams, locks, ledger, trigger, inotify."""
EACH_SPOOL = 24
"""Folders being synced, a message being read, a report being written."""
EACH_CLIENT = 2
EACH_UPSTREAM = 8
"""A history, its lock, its next edition, its folder; a name being looked up."""
EACH_CONNECTION = 2
"""Its socket, and a certificate or a password being read for it."""
EACH_MARK = 2
"""For a connection: its message being marked, and the one before."""
EACH_HOOK = 6
"""A socket and a name being looked up, or the pipes of a program."""
EACH_PROCESS = 4
"""Of listeners: orders, counts, pidfd."""
CONTROL = 32
ONE_VISITOR_OF = 16
"""The share of a low limit that connections to the status port get: they must not take the disk's."""
FEWEST_VISITORS = 4
MOST_KEPT_PERCENT = 75
"""Of a limit that is too low for the policy: some client has to be let in."""


@dataclass(frozen=True, slots=True)
class Budget:
    limit: int
    """RLIMIT_NOFILE."""
    needed: int
    """For all that the policy allows at once."""
    ceiling: int
    """No client keeps a descriptor of this number or above."""
    clients: int
    """How many connections of clients there may be, on all listeners together."""
    wanted_clients: int
    """How many the policy allows."""

    @property
    def is_short(self) -> bool:
        return self.clients < self.wanted_clients

    def fitted(self, listen: Listen) -> Listen:
        """Return a listener that takes no more connections than its share of what there is."""
        if not self.is_short:
            return listen
        # One client gets the same share of it as before.
        fewer = {
            key: max(1, getattr(listen, key) * self.clients // self.wanted_clients)
            for key in ("max_connections", "max_connections_per_client")
        }
        return listen.model_copy(update=fewer)


def raise_limit() -> int:
    """Return the new limit: the hard one where that is permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # A sandbox may forbid it (systemd.exec(5), @resources).
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else 2**31


def most_visitors(limit: int) -> int:
    return min(BOUNDS.most, max(FEWEST_VISITORS, limit // ONE_VISITOR_OF))


def sender_budget(policy: Policy, limit: int) -> Budget:
    connections = sum(upstream.connections for upstream in policy.upstreams.values())
    disk = EACH_SPOOL + EACH_UPSTREAM * len(policy.upstreams) + EACH_MARK * connections
    network = BASE + CONTROL + EACH_CONNECTION * connections + len(policy.listen)
    network += EACH_HOOK * len(policy.notify)
    network += EACH_PROCESS * sum(listener_processes(listen) for listen in policy.listen)
    network += most_visitors(limit) if policy.http is not None else 0
    network += connections if policy.practice is not None else 0
    here = [listen for listen in policy.listen if listener_processes(listen) == 0]
    wanted = sum(listen.max_connections for listen in here)
    return _budget(limit, network, disk, wanted, at_least=len(here))


def listener_budget(listen: Listen, limit: int) -> Budget:
    return _budget(limit, BASE, EACH_SPOOL, listen.max_connections, at_least=1)


def _budget(limit: int, network: int, disk: int, wanted_clients: int, *, at_least: int) -> Budget:
    needed = network + disk + EACH_CLIENT * wanted_clients
    kept = min(network + disk, limit * MOST_KEPT_PERCENT // 100)
    clients = max(at_least, min(wanted_clients, (limit - kept) // EACH_CLIENT))
    # Of what a client costs one half is a file.
    ceiling = max(limit - disk - clients, limit // 2)
    return Budget(limit, needed, ceiling, clients, wanted_clients)
