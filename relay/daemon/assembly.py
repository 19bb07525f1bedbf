"""A relay put together, whatever host it runs on: the sender, what is seen of it, its operator and chores.

What only a process has (signals, sockets, listener processes, HTTP, systemd) is `relay.daemon.daemon`'s.
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
from relay.status.watch import Watch
from relay.telemetry.metrics import Telemetry

LOOKS_TO_THE_HOSTS = 10
"""So often our own files are looked at between two looks at the hosts of a database."""


@dataclass
class Assembly:
    spool: Spool
    host: Host
    policy: Policy
    hostname: str
    telemetry: Telemetry
    status: PolicyStatus
    on_fault: Callable[[BaseException], None]
    """Told of what must end the relay."""

    def __post_init__(self) -> None:
        self.sender = Sender(
            self.spool,
            self.host,
            policy=self.policy,
            hostname=self.hostname,
            telemetry=self.telemetry,
            on_fault=self.on_fault,
        )
        self.watch = Watch(self.sender, self.policy, self.hostname, self.host.clock, self.status)
        self.operator = Operator(self.sender, self.watch, self.telemetry.events)

    def chores(self) -> list[Coroutine[Any, Any, None]]:
        """Return what goes on for as long as the relay runs; whose end by an error ends the sender."""
        late = LateMail(self.sender.queue, self.sender.settling, self.host)
        guard = self.sender.upstreams.guard
        hosts = partial(self.watch.look_at_hosts, LOOKS_TO_THE_HOSTS * self.host.look_seconds)
        return [guard(late.run), guard(self.operator.serve_others), guard(hosts)]
