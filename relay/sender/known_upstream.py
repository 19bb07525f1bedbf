"""What is known of one upstream account, beside its limits: rules, doubts, offers, and whether it is used."""

from collections.abc import Iterable
from dataclasses import dataclass

from relay.policy.model import Upstream
from relay.sender.known_offers import KnownOffers, server_of
from relay.sender.state_file import KeptFile
from relay.sender.upstream_health import Pausing
from relay.verdicts.account import AccountState, PauseRecord
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Judge, Rule


@dataclass(frozen=True, slots=True)
class KnownUpstream:
    judge: Judge
    shield: Shield
    pausing: Pausing
    offers: KnownOffers
    kept: KeptFile[PauseRecord]

    def use(self, rules: Iterable[Rule], upstream: Upstream) -> None:
        # What is said from now on is judged by the new rules, on the connections that there are.
        self.judge.use(rules)
        self.offers.use(server_of(upstream))
        self.shield.is_off = upstream.shield is None
        if upstream.shield is not None:
            self.shield.in_a_row = upstream.shield.in_a_row

    def resume(self) -> None:
        """Use the upstream again, carefully, by an operator's word, which answers what the shield asks."""
        self.pausing.end()
        self.shield.clear()

    def edited(self) -> None:
        """Use the upstream again, carefully, as an edit may have mended it, where no operator paused it."""
        self.pausing.edited()
        self.shield.clear()

    async def recall(self, before: AccountState | None) -> None:
        """Go on from what was kept before a restart; call it ahead of all else.

        `before` is the state of the account that an edit replaced by this one: what the operator said of it
        counts, and not what was said when this one was used before.
        """
        if (pause := await self.kept.read()) is not None:
            self.pausing.recall(pause)
            self.shield.recall(pause.state.doubts)
        if before is not None and before.operator is not None:
            self.pausing.keep_back(before.operator, since_ns=before.spans[-1][0])
        elif before is not None and self.pausing.state.operator is not None:
            self.pausing.end()
