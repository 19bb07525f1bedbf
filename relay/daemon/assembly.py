"""Assembles a relay for any host, real or simulated: the sender, its status, its operator and its chores.

Signals, sockets, listener processes, HTTP and systemd belong to a real process: see `relay.daemon.daemon`.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from relay.control.operator import Operator
from relay.policy.model import Policy
from relay.sender.host import Host
from relay.sender.reports import LateMail
from relay.sender.sender import Sender
from relay.spool.interface import Spool
from relay.status.snapshot import PolicyStatus
from relay.status.status_view import StatusView
from relay.telemetry.metrics import Telemetry

LOOKS_TO_THE_HOSTS = 10
"""The hosts of a database are read once in so many looks at local files."""


@dataclass
class Assembly:
    spool: Spool
    host: Host
    policy: Policy
    hostname: str
    telemetry: Telemetry
    status: PolicyStatus
    on_fault: Callable[[BaseException], None]
    """Called with an error that must end the relay."""

    def __post_init__(self) -> None:
        self.sender = Sender(
            self.spool,
            self.host,
            policy=self.policy,
            hostname=self.hostname,
            telemetry=self.telemetry,
            on_fault=self.on_fault,
        )
        self.status_view = StatusView(self.sender, self.policy, self.hostname, self.host.clock, self.status)
        self.operator = Operator(self.sender, self.status_view, self.telemetry.events)

    def chores(self) -> list[Coroutine[Any, Any, None]]:
        """Return coroutines that run as long as the relay; an error in one of them ends the sender."""
        late = LateMail(self.sender.settling, self.host)
        guard = self.sender.guard
        hosts = partial(self.status_view.look_at_hosts, LOOKS_TO_THE_HOSTS * self.host.look_seconds)
        return [guard(late.run), guard(self.operator.serve_others), guard(hosts)]
