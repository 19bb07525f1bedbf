"""A session of the listener within this process."""

import asyncio
import errno
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SystemClock
from relay.mail.dsn import DsnRequest, Notify, RecipientRequest, Ret
from relay.mail.envelope import QueueId
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.engine import MaildirSpool
from relay.submission.composing import Submission
from relay.submission.handover import Handover, Refusal, taker

POLICY = b"""
spool: ./spool
listen: [{address: "127.0.0.1:0", clients: [127.0.0.0/8]}]
upstreams: {isp: {host: 127.0.0.1, port: 9, tls: none, limits: []}}
"""


def test_a_session_that_cannot_run_answers_at_once_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(session: Coroutine[Any, Any, None]) -> None:
        """As asyncio.run fails where no descriptor is left for its loop."""
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


def test_quotas_of_listeners_keep_nobody_from_their_own_spool(tmp_path: Path) -> None:
    """Nobody tells this session what is queued: all that it could go by is its own guess."""
    (tmp_path / "spool").mkdir()
    text = POLICY.replace(b"clients: [", b"max_queued_per_client: 2, clients: [")
    policy = parse_policy(text, tmp_path / "policy.yaml")

    with taker(policy, "relay.test", print) as connected:
        handover = Handover(connected, "relay.test")
        given = [handover.give(Submission("a@b", ("c@d",), b"Subject: x\r\n\r\n")) for _ in range(3)]

    assert [reply[:9] for reply in given] == ["250 2.0.0"] * 3


def test_what_the_sender_wants_to_be_told_is_kept_with_the_message(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    policy = parse_policy(POLICY, tmp_path / "policy.yaml")
    asking = Submission("a@b", ("c@d", "e@f"), b"Subject: x\r\n\r\n", Notify.SUCCESS, Ret.FULL, "batch+207")

    with taker(policy, "relay.test", print) as connected:
        queue_id = QueueId(Handover(connected, "relay.test").give(asking).rpartition(" ")[2])

    spool = MaildirSpool(str(policy.spool), RealDisk(), SystemClock())
    (message,) = spool.claim(1)
    spool.close()
    assert message.queue_id == queue_id
    assert message.envelope.dsn == DsnRequest(Ret.FULL, "batch+207", (RecipientRequest(Notify.SUCCESS),) * 2)
