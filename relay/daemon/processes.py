"""How many processes of its own a listener has: what the policy says, or what this host is good for."""

import os

from relay.policy.model import Listen


def listener_processes(listen: Listen) -> int:
    """Return the number; 0 for a listener inside the sender's process.

    By `auto` a listener has a process where it can run beside the sender.  Only processors that this
    process may use count (taskset(1), systemd's AllowedCPUs).
    """
    if listen.processes != "auto":
        return listen.processes
    return 1 if len(os.sched_getaffinity(0)) > 1 else 0
