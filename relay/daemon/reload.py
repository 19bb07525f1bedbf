"""Applies an edit of the policy to the running relay, or refuses it.

A good edit takes effect at once, except for keys that need a restart, which the log names.  No transaction is
dropped, and the new limits apply to the same history.  The log lists the first MOST_CHANGES changes.
A bad edit changes nothing: it is counted, and each of its faults is logged.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from relay.hooks.hooks import Hooks
from relay.policy.model import RESTART_KEYS, Policy
from relay.policy.source import PolicyError, differences
from relay.sender.sender import Sender
from relay.status.snapshot import PolicyStatus
from relay.status.status_view import StatusView
from relay.telemetry.metrics import Telemetry
from relay.telemetry.outcomes import OutcomeStore

MOST_CHANGES = 20
LONGEST_CHANGE = 300
"""Characters."""


@dataclass
class Reload:
    path: Path
    started_with: Policy
    sender: Sender
    status_view: StatusView
    hooks: Hooks
    outcomes: OutcomeStore
    telemetry: Telemetry

    def __post_init__(self) -> None:
        self._loaded = self.started_with

    async def apply(self, policy: Policy, sha256: str) -> None:
        await self._go_by(policy)
        found, self._loaded = differences(self._loaded, self.status_view.policy), self.status_view.policy
        changes = [str(each)[:LONGEST_CHANGE] for each in found[:MOST_CHANGES]]
        if len(found) > MOST_CHANGES:
            changes.append(f"and {len(found) - MOST_CHANGES} more")
        old, now_ns = self.status_view.policy_status, self.telemetry.clock.wall_ns()
        status = PolicyStatus(sha256, now_ns, refused_file=old.refused_file, path=old.path)
        self.status_view.policy_status = status
        self.telemetry.metrics.count("relay_policy_reloads_total", "ok")
        self.telemetry.events.tell("policy_loaded", path=str(self.path), sha256=sha256, changes=changes)
        waiting = [each for each in differences(self.started_with, policy) if each.needs_restart]
        if keys := list(dict.fromkeys(each.about.partition(".")[0] for each in waiting)):
            self.telemetry.events.tell("policy_needs_restart", path=str(self.path), keys=keys)

    async def _go_by(self, policy: Policy) -> None:
        # Keys that need a restart keep their old values, so that paths and addresses stay true.
        live = policy.model_copy(update={key: getattr(self.started_with, key) for key in RESTART_KEYS})
        try:
            await self.sender.apply(live)
            self.hooks.use(live)
            self.outcomes.use(live.recent)
        except Exception as error:
            # Half of the edit is in force: only a restart repairs that.
            self.sender.fail(error)
            raise
        self.status_view.policy = live

    def refuse(self, error: PolicyError) -> None:
        faults = [str(fault) for fault in error.errors]
        self.status_view.policy_status = replace(
            self.status_view.policy_status, last_reload_ok=False, last_error=faults[0] if faults else ""
        )
        self.telemetry.metrics.count("relay_policy_reloads_total", "refused")
        for fault in faults:
            self.telemetry.events.tell("policy_refused", path=str(self.path), fault=fault)
