"""How many processes and connections of clients this host has room for.

Of the descriptors of a process, clients get a half at most: each has a socket, and a file for a message
that is too long for memory.  The other half is for the spool, upstreams, histories and the status port.
"""

import contextlib
import os
import resource
from collections.abc import Sequence

from relay.policy.model import Listen
from relay.status import MOST_CONNECTIONS

EACH_CLIENT = 4
"""Of the limit: its two descriptors, and as many for everything else."""
ONE_STATUS_OF = 16
"""The share of a low limit that connections to the status port get: they must not take the disk's."""


def listener_processes(listen: Listen) -> int:
    """Return how many processes of its own a listener has; 0 inside the sender's.

    By `auto` one, where it can run beside the sender.  Only processors that this process may use count
    (taskset(1), systemd's AllowedCPUs).
    """
    return min(1, len(os.sched_getaffinity(0)) - 1) if listen.processes == "auto" else listen.processes


def raise_limit() -> int:
    """Return RLIMIT_NOFILE, which is the hard limit from now on where that is permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # A sandbox may forbid it (systemd.exec(5), @resources).
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else 2**31


def most_status_connections(limit: int) -> int:
    return min(MOST_CONNECTIONS, max(4, limit // ONE_STATUS_OF))


def fitted(listens: Sequence[Listen], limit: int) -> list[Listen]:
    """Return the listeners of one process with as many connections as the limit has room for."""
    most, wanted = limit // EACH_CLIENT, sum(listen.max_connections for listen in listens)
    if wanted <= most:
        return list(listens)
    # One client gets the same share of them as before.
    keys = ("max_connections", "max_connections_per_client")
    return [
        each.model_copy(update={key: max(1, getattr(each, key) * most // wanted) for key in keys})
        for each in listens
    ]
