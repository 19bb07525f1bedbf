"""A session of the listener within this process."""

import asyncio
import errno
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from relay.policy.source import parse_policy
from relay.submission.handover import Handover, Refusal, taker

POLICY = b"""
spool: ./spool
listen: [{address: "127.0.0.1:0", clients: [127.0.0.0/8]}]
upstreams: {isp: {host: 127.0.0.1, port: 9, tls: none, limits: []}}
"""


def test_a_session_that_cannot_run_ends_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(session: Coroutine[Any, Any, None]) -> None:
        """Fail like asyncio.run if no descriptor is left for its loop."""
        session.close()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "run", no_descriptor)
    (tmp_path / "spool").mkdir()
    policy = parse_policy(POLICY, tmp_path / "policy.yaml")
    told: list[str] = []

    with (
        taker(policy, "relay.test", told.append) as connected,
        pytest.raises(Refusal, match="the relay closed the connection") as refused,
    ):
        Handover(connected, "relay.test")

    assert refused.value.exit_code == os.EX_TEMPFAIL
    assert told == ["fault: OSError(24, 'Too many open files')"]
