"""Postfix and the relay, set up alike: durable, unlimited in practice, twenty connections out."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.bench.filling import database, temporary_folder
from tests.system import postfix
from tests.system.relay import ColdRelay
from tests.system.smtp_tools import SmtpSink, smtp_sink

CONNECTIONS = 20
MOST_SESSIONS = 1000
"""Sessions that the relay allows at once: more than smtp-source opens under any load here."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that takes mail on a port and hands it on to its own sink."""

    name: str
    port: int
    sink: SmtpSink


def sink_policy(sink: SmtpSink) -> dict[str, Any]:
    """Return the section of the upstream; its limit counts every message and is never reached."""
    return {
        "host": "127.0.0.1",
        "port": sink.port,
        "tls": "none",
        "connections": CONNECTIONS,
        "limits": [{"messages": 1_000_000, "per": "1h"}],
    }


@contextmanager
def postfix_contender() -> Iterator[Contender]:
    settings = {
        "default_process_limit": "100",
        "default_destination_concurrency_limit": str(CONNECTIONS),
        "smtp_tls_security_level": "none",
    }
    with smtp_sink() as sink, postfix.front(sink.port, **settings) as front:
        yield Contender("postfix", front.port, sink)


@contextmanager
def relay_contender(processes: int, engine: str) -> Iterator[Contender]:
    with ExitStack() as running:
        sink, folder = running.enter_context(smtp_sink()), running.enter_context(temporary_folder())
        spool = {"path": "./spool", "engine": engine}
        if engine == "postgresql":
            spool = {"path": "./spool", engine: running.enter_context(database())}
        listen = {
            "processes": processes,
            "max_connections": MOST_SESSIONS,
            "max_connections_per_client": MOST_SESSIONS,
        }
        relay = ColdRelay(folder, {"sink": sink_policy(sink)}, listen=listen, spool=spool)
        running.enter_context(relay)
        yield Contender(f"relay, {engine}, {processes} listener processes", relay.port, sink)
