"""When messages of any boot came in, by this boot's time (`relay.mail.age`); kept on disk now and then."""

from collections.abc import Collection

from relay.clock import SECOND_NS
from relay.mail.age import Boots, BootsRecord
from relay.mail.envelope import Envelope
from relay.policy.model import Policy
from relay.sender.state_file import KeptFile, boots_file
from relay.spool.disk.durable import Disk
from relay.telemetry.telemetry import Telemetry

BOOTS_NS = 300 * SECOND_NS
"""How much age a crash of the host can cost what is queued."""


class Ages:
    def __init__(self, policy: Policy, disk: Disk, telemetry: Telemetry) -> None:
        self._clock, events = telemetry.clock, telemetry.events
        self._boots = Boots(self._clock.boot_id(), self._clock.boottime_ns())
        self._kept: KeptFile[BootsRecord] = KeptFile(
            boots_file(policy, disk), lambda error: events.boots_unrecorded(error=error)
        )
        self._keeps_at_ns = 0

    async def recall(self) -> None:
        """Go on from what was kept; call it ahead of all else."""
        now_ns = self._clock.boottime_ns()
        self._boots = Boots(self._clock.boot_id(), now_ns, await self._kept.read())

    def forget_but(self, boot_ids: Collection[str]) -> None:
        """Forget the boots that no queued message is of."""
        self._boots.forget_but(boot_ids)

    def arrived_at_ns(self, envelope: Envelope, now_ns: int, wall_ns: int) -> int:
        wall_age_ns = wall_ns - envelope.arrival_at_ns
        return self._boots.arrived_at_ns(envelope.boot_id, envelope.boottime_ns, now_ns, wall_age_ns)

    def here(self, boot_id: str, at_ns: int) -> int | None:
        """Return an instant of another boot by this one's clock; None if unknown."""
        return self._boots.here(boot_id, at_ns)

    def keep(self, *, now: bool = True) -> None:
        """Keep the ages of queued messages for a restart in another boot; at the latest BOOTS_NS later."""
        now_ns = self._clock.boottime_ns()
        if now or now_ns >= self._keeps_at_ns:
            self._keeps_at_ns = now_ns + BOOTS_NS
            self._kept.keep(self._boots.record(now_ns))

    async def close(self) -> None:
        await self._kept.close()
