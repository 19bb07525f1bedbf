"""What an edit of the policy does to a relay that runs.

A good edit takes effect at once, except keys that need a restart, which are named in the log; no
transaction is dropped, and the limits judge the same history by the new numbers.  A bad edit changes
nothing: every fault is logged and counted.  The log names an edit that rests, with its end, and says
what an edit that came into force changed, up to MOST_CHANGES.
"""

import textwrap
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from relay.daemon.policy_watch import Waiting
from relay.hooks.hooks import Hooks
from relay.policy.differences import differences
from relay.policy.faults import PolicyError
from relay.policy.loosening import changes_needing_restart
from relay.policy.model import Policy
from relay.policy.written_out import written_key
from relay.sender.sender import Sender
from relay.status.snapshot import PolicyStatus
from relay.status.watch import Watch
from relay.telemetry.outcomes import OutcomeStore
from relay.telemetry.telemetry import Telemetry

MOST_CHANGES = 20
LONGEST_CHANGE = 300
"""Characters."""


class Reload:
    def __init__(
        self,
        path: Path,
        policy: Policy,
        *,
        sender: Sender,
        watch: Watch,
        hooks: Hooks,
        outcomes: OutcomeStore,
        telemetry: Telemetry,
    ) -> None:
        self._path = str(path)
        self._started_with = self._loaded = policy
        self._sender, self._watch, self._hooks, self._outcomes = sender, watch, hooks, outcomes
        self._events, self._metrics, self._clock = telemetry.events, telemetry.metrics, telemetry.clock

    async def apply(self, policy: Policy, sha256: str) -> None:
        keys = changes_needing_restart(self._started_with, policy)
        if not await self._go_on_by(policy, keys):
            return
        found, self._loaded = differences(self._loaded, self._watch.policy), self._watch.policy
        changes = [f"{each.sign} {each.words}".removeprefix("~ ") for each in found[:MOST_CHANGES]]
        if len(found) > MOST_CHANGES:
            changes.append(f"and {len(found) - MOST_CHANGES} more")
        changes = [textwrap.shorten(each, LONGEST_CHANGE, placeholder=" …") for each in changes]
        old, now_ns = self._watch.policy_status, self._clock.wall_ns()
        self._watch.policy_status = PolicyStatus(sha256, now_ns, refused_file=old.refused_file, path=old.path)
        self._metrics.policy_reloaded(is_ok=True)
        self._events.policy_loaded(path=self._path, sha256=sha256, changes=changes)
        if keys:
            written = [written_key(Policy, key) for key in keys]
            self._events.policy_needs_restart(path=self._path, keys=written)

    async def hold(self, policy: Policy) -> None:
        """Log nothing: no policy came into force."""
        await self._go_on_by(policy, changes_needing_restart(self._started_with, policy))

    async def _go_on_by(self, policy: Policy, fixed: Collection[str]) -> bool:
        """Leave out `fixed` keys, which stay for this run; return whether the sender goes by the rest."""
        # So that paths and addresses remain true.
        live = policy.model_copy(update={key: getattr(self._started_with, key) for key in fixed})
        try:
            await self._sender.apply(live)
            await self._hooks.use(live)
            self._outcomes.use(live.recent)
        except Exception as error:  # noqa: BLE001 - half an edit is in force: only a restart makes it whole
            self._sender.fail(error)
            return False
        self._watch.policy = live
        return True

    def wait(self, waiting: Waiting | None) -> None:
        because, until_ns = (waiting.because, waiting.until_ns) if waiting else ("", None)
        if until_ns is not None:
            until_ns += self._clock.wall_ns() - self._clock.boottime_ns()
        self._watch.policy_status = replace(
            self._watch.policy_status, waiting_because=because, waiting_until_ns=until_ns
        )
        if waiting is not None:
            self._events.policy_waiting(
                path=self._path, sha256=waiting.sha256, reason=because, until_at_ns=until_ns
            )

    def refuse(self, error: PolicyError) -> None:
        faults = [str(fault) for fault in error.errors]
        self._watch.policy_status = replace(
            self._watch.policy_status, last_reload_ok=False, last_error=faults[0] if faults else ""
        )
        self._metrics.policy_reloaded(is_ok=False)
        self._events.policy_refused(path=self._path, faults=faults)
