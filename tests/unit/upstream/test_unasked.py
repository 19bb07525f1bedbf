"""Replies that nobody asked for: nobody is settled by the reply to another command."""

import asyncio
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from relay.policy.model import Tls
from relay.upstream.connection import Account
from relay.upstream.timeouts import Timeouts
from relay.verdicts.outcome import Outcome
from relay.verdicts.verdict import Verdict
from tests.unit.upstream.sessions import (
    RECIPIENTS,
    SOON_S,
    connected,
    transaction,
)
from tests.unit.upstream.unasked import Truth, Unasked, UnaskedHost

RELAYED, DEFER, BOUNCE = Verdict.RELAYED, Verdict.DEFER, Verdict.BOUNCE
NOBODY, BUSY, OK = "550 5.1.1 who?", "450 4.2.1 busy", "250 2.1.5 ok"
SAID = (OK, NOBODY, BUSY, "354 go ahead", "")
FIRST = 1  # behind EHLO


async def outcomes_of(
    truth: Truth, unasked: Sequence[Unasked], *, pipelines: bool
) -> tuple[list[Outcome], list[tuple[str, ...]]]:
    """Return what two transactions on one connection came to, and whom the upstream relayed."""
    soon = Timeouts(mail_s=SOON_S, rcpt_s=SOON_S, data_s=SOON_S, eod_s=SOON_S, reset_s=SOON_S, quit_s=SOON_S)
    async with UnaskedHost(truth, unasked, pipelines=pipelines).listening() as host:
        opened = Account("127.0.0.1", host.port, Tls.NONE, "client.example")
        async with connected(opened, soon) as connection:
            outcomes = [await connection.transact(transaction())]
            if connection.is_usable:
                outcomes.append(await connection.transact(transaction()))
        return outcomes, host.relayed


def check(truth: Truth, outcomes: Sequence[Outcome], relayed: Sequence[tuple[str, ...]]) -> None:
    for outcome in outcomes:
        for recipient, answer in zip(RECIPIENTS, outcome.answers, strict=True):
            meant = [truth.mail, truth.rcpt.get(recipient, OK), truth.dot]
            if answer.verdict is BOUNCE:
                assert any(said.startswith("5") for said in meant), (recipient, answer)
            if answer.verdict is RELAYED:
                assert any(recipient in each for each in relayed), (recipient, answer)
    for recipient in RECIPIENTS:
        told = sum(outcome.answers[RECIPIENTS.index(recipient)].verdict is RELAYED for outcome in outcomes)
        assert told <= sum(recipient in each for each in relayed)


@example("250 2.1.0 ok", [OK] * 3, "250 2.0.0 taken", [Unasked(FIRST, NOBODY)], False)
@example("250 2.1.0 ok", [OK] * 3, "250 2.0.0 taken", [Unasked(FIRST + 5, NOBODY)], True)
@example("250 2.1.0 ok", [NOBODY, NOBODY, OK], "250 2.0.0 taken", [Unasked(FIRST + 1, NOBODY)], False)
@example("250 2.1.0 ok", [OK] * 3, "250 2.0.0 taken", [Unasked(FIRST + 4, NOBODY)], True)
@given(
    st.sampled_from(["250 2.1.0 ok", "550 5.7.0 no"]),
    st.lists(st.sampled_from([OK, NOBODY, BUSY]), min_size=3, max_size=3),
    st.sampled_from(["250 2.0.0 taken", "554 5.6.0 no", "451 4.3.0 later"]),
    st.lists(st.builds(Unasked, st.integers(FIRST, 12), st.sampled_from(SAID), st.booleans()), max_size=2),
    st.booleans(),
)
def test_only_the_upstreams_own_ledger_bounces_or_relays(
    mail: str, rcpt: list[str], dot: str, unasked: list[Unasked], pipelines: bool
) -> None:
    truth = Truth(mail, dict(zip(RECIPIENTS, rcpt, strict=True)), dot)
    check(truth, *asyncio.run(outcomes_of(truth, unasked, pipelines=pipelines)))
