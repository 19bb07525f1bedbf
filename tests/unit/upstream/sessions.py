"""Shared by the tests of SMTP out: an account at a fake smarthost, a message, a transaction."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from relay.clock import SystemClock
from relay.mail.envelope import Shape
from relay.policy.model import Mechanism, Tls, Upstream
from relay.smtp.sasl import Credentials
from relay.upstream.connection import Connection, UpstreamServer, open_connection
from relay.upstream.protocol import Timeouts
from relay.upstream.transaction import Transaction
from relay.verdicts.outcome import Outcome
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import Smarthost

CONTENT = b"Subject: hello\r\n\r\nline\r\n.dot\r\n"
SENDER = "sender@example.com"
RECIPIENTS = ("a@example.net", "b@example.net", "c@example.net")
SOON_S = 0.05
"""A timeout for the step that is to time out; every other step has its real timeout."""


def account(
    host: Smarthost,
    *,
    tls: Tls = "none",
    name: str = "127.0.0.1",
    ca_file: Path | None = None,
    user: str | None = None,
    password: str = "",
    mechanism: Mechanism = "auto",
    pipelining: bool = True,
) -> UpstreamServer:
    upstream = Upstream.model_construct(
        host=name, port=host.port, tls=tls, ca_file=ca_file, pipelining=pipelining, limits=()
    )
    credentials = None if user is None else Credentials(user, password)
    return UpstreamServer(upstream, "client.example", credentials, mechanism)


@asynccontextmanager
async def connected(account: UpstreamServer, timeouts: Timeouts | None = None) -> AsyncIterator[Connection]:
    connection = await open_connection(account, SystemClock(), timeouts)
    try:
        yield connection
    finally:
        connection.abort()


def transaction(
    *recipients: str,
    reverse_path: str = SENDER,
    chunks: Sequence[bytes] = (CONTENT,),
    eight_bit: bool = False,
    smtputf8: bool = False,
    size_bytes: int | None = None,
) -> Transaction:
    size_bytes = sum(map(len, chunks)) if size_bytes is None else size_bytes

    async def content() -> AsyncGenerator[bytes, None]:
        for chunk in chunks:
            yield chunk

    shape = Shape(size_bytes, eight_bit, smtputf8)
    return Transaction(reverse_path, recipients or RECIPIENTS, shape, content)


def verdicts(outcome: Outcome) -> list[Verdict]:
    return [answer.verdict for answer in outcome.answers]
