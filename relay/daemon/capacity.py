"""How many listener processes and client connections fit on this host.

Clients get at most half of a process's descriptors: each client has a socket, and a file for a message that
is too long for memory.  The other half is for the spool, upstreams, histories and the status port.
"""

import contextlib
import os
import resource
from collections.abc import Sequence

from relay.policy.model import Listen

EACH_CLIENT = 4
"""Descriptors for each client: two of its own, and two for everything else."""


def listener_processes(listen: Listen) -> int:
    """Return how many processes of its own a listener has; 0: it runs in the sender's process.

    `auto` means one if this process may use a second processor (taskset(1), systemd's AllowedCPUs).
    """
    return min(1, len(os.sched_getaffinity(0)) - 1) if listen.processes == "auto" else listen.processes


def raise_limit() -> int:
    """Raise RLIMIT_NOFILE to the hard limit if that is permitted, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # A sandbox may forbid it (systemd.exec(5), @resources).
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else 2**31


def fitted(listens: Sequence[Listen], limit: int) -> list[Listen]:
    """Return the listeners of one process, their connections reduced in proportion to fit the limit."""
    most, wanted = limit // EACH_CLIENT, sum(listen.max_connections for listen in listens)
    if wanted <= most:
        return list(listens)
    # Both keys shrink alike, so that one client keeps its share.
    keys = ("max_connections", "max_connections_per_client")
    return [
        each.model_copy(update={key: max(1, getattr(each, key) * most // wanted) for key in keys})
        for each in listens
    ]
