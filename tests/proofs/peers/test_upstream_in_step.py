"""A real Postfix, secured and logged in, proves its replies in step: by a second EHLO, and by QUIT."""

import asyncio

import pytest

from relay.clock import SystemClock
from relay.policy.model import Tls
from relay.upstream.connection import Account, open_connection
from relay.upstream.step import MOST_HELLOS
from relay.verdicts.outcome import Outcome
from relay.verdicts.verdict import Verdict
from tests.proofs.peers import postfix
from tests.proofs.peers.demand import demand
from tests.unit.upstream.sessions import transaction, verdicts

pytestmark = pytest.mark.slow

USER, PASSWORD = "mjd", "correct horse"
BOUNCE, RELAYED = Verdict.BOUNCE, Verdict.RELAYED


def test_postfix_proves_itself_by_ehlo_and_then_by_quit() -> None:
    demand(postfix.why_missing())
    with postfix.upstream(
        USER, PASSWORD, smtpd_recipient_restrictions="reject_non_fqdn_recipient, permit"
    ) as upstream:

        async def refused() -> tuple[list[Outcome], list[bool]]:
            account = Account(
                "localhost",
                upstream.port,
                Tls.STARTTLS,
                "client.example",
                ca_file=upstream.certificate,
                user=USER,
                password=PASSWORD,
            )
            connection = await open_connection(account, SystemClock())
            outcomes, usable = [], []
            for _ in range(MOST_HELLOS):
                outcomes.append(await connection.transact(transaction("nobody@nowhere")))
                usable.append(connection.is_usable)
            # Still logged in.
            outcomes.append(await connection.transact(transaction("a@list.test")))
            outcomes.append(await connection.transact(transaction("nobody@nowhere")))
            usable.append(connection.is_usable)
            return outcomes, usable

        outcomes, usable = asyncio.run(refused())

    assert [verdicts(outcome) for outcome in outcomes] == [
        *[[BOUNCE]] * MOST_HELLOS,
        [RELAYED],
        [BOUNCE],
    ]
    assert usable == [*[True] * MOST_HELLOS, False]
