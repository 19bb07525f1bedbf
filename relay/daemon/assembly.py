"""A relay put together, whatever host it runs on: the sender, what is seen of it, its operator and chores.

What only a process has (signals, sockets, listener processes, HTTP, systemd) is `relay.daemon.daemon`'s.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from relay.control.operator import Operator
from relay.daemon.spilling import Spilling
from relay.policy.model import Policy
from relay.sender.host import Host
from relay.sender.late_mail import LateMail
from relay.sender.sender import Sender
from relay.spool.interface import Spool
from relay.status.snapshot import PolicyStatus
from relay.status.watch import Watch
from relay.telemetry.telemetry import Telemetry


class Assembly:
    def __init__(
        self,
        spool: Spool,
        host: Host,
        *,
        policy: Policy,
        hostname: str,
        telemetry: Telemetry,
        status: PolicyStatus,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`on_fault` is told of what must end the relay."""
        self.sender = Sender(
            spool,
            host,
            policy=policy,
            hostname=hostname,
            telemetry=telemetry,
            on_fault=on_fault,
        )
        self.watch = Watch(self.sender, policy, hostname, host.clock, status)
        self.operator = Operator(self.sender, self.watch, telemetry.events)
        self._clock = host.clock

    def chores(self) -> list[Coroutine[Any, Any, None]]:
        """Return what goes on for as long as the relay runs; whose end by an error ends the sender."""
        late = LateMail(
            self.sender.queue,
            self.sender.settling,
            self._clock,
            foresee=lambda: self.watch.listing().messages,
            pausing=self.sender.upstreams.pausing,
        )
        spilling = Spilling(self.sender, self.watch, self._clock)
        guard = self.sender.upstreams.guard
        return [guard(late.run), guard(spilling.run)]
