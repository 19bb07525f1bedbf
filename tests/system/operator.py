"""An operator who holds, releases and deletes what stays in the queue, and remembers what was answered.

Asked again and again while the relay is killed and started: each order goes on where the last
answer left off, and what the queue then looks like must agree with what was answered.
"""

import contextlib
import http.client
import json
import os
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.system.waiting import HANG_S

ORDERS = ("hold", "release", "delete")


@dataclass(slots=True)
class Orders:
    """What one message was ordered to do."""

    recipients: tuple[str, ...]
    asked: int = 0
    """How many orders were given."""
    answered: int = 0
    """How many of them were said to be done."""
    asked_at_ns: list[int] = field(default_factory=list)
    """By boottime: of each order, when it was first given."""
    answered_at_ns: list[int] = field(default_factory=list)


class Operator:
    """Takes care of messages to `stay…`."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._orders: dict[str, Orders] = {}

    def work(self, spool: Path) -> bool:
        """Give each message that stays its next order; return whether there was any message.

        Raises OSError and HTTPException.
        """
        queue = [json.loads(line) for line in _ask(spool, "/listing", {}).splitlines()]
        for message in queue:
            if any(recipient.startswith("stay") for recipient in message["recipients"]):
                self._order(spool, message)
        return bool(queue)

    def judge(self, tried: Sequence[tuple[str, int]], promised: Collection[str]) -> None:
        """Fail if what was deleted or held was tried, or what stays is gone without an order."""
        for orders in self._orders.values():
            at_ns = [each_ns for recipient, each_ns in tried if recipient in orders.recipients]
            if len(orders.answered_at_ns) == len(ORDERS):
                self._check(orders, at_ns, orders.answered_at_ns[2], None, "deleted")
            if orders.answered_at_ns:
                until_ns = orders.asked_at_ns[1] if orders.asked > 1 else None
                self._check(orders, at_ns, orders.answered_at_ns[0], until_ns, "held")
        deleted = {
            each
            for orders in self._orders.values()
            if orders.asked == len(ORDERS)
            for each in orders.recipients
        }
        assert self.faults == []
        assert set(promised) - deleted == set(), "gone, and nobody deleted it"

    def _check(
        self, orders: Orders, tried_at_ns: Sequence[int], from_ns: int, until_ns: int | None, what: str
    ) -> None:
        if any(from_ns < at_ns and (until_ns is None or at_ns < until_ns) for at_ns in tried_at_ns):
            self.faults.append(f"{orders.recipients} tried though {what}")

    def _order(self, spool: Path, message: dict[str, Any]) -> None:
        orders = self._orders.setdefault(message["queue_id"], Orders(tuple(message["recipients"])))
        self._look(orders, message)
        if orders.answered == len(ORDERS):
            return
        verb = ORDERS[orders.answered]
        if orders.asked == orders.answered:
            orders.asked += 1
            orders.asked_at_ns.append(_now_ns())
        (result,) = json.loads(_ask(spool, f"/queue/{verb}", [message["queue_id"]])).values()
        # Unchanged: a relay that was killed ahead of its answer had done it.
        if result in ("ok", "unchanged"):
            orders.answered += 1
            orders.answered_at_ns.append(_now_ns())

    def _look(self, orders: Orders, message: dict[str, Any]) -> None:
        """Compare what the queue says with what was answered; between order and answer both are right."""
        is_held = message["state"] == "held"
        if orders.answered == len(ORDERS):
            self.faults.append(f"{message['queue_id']} is there though deleted")
        elif orders.asked == orders.answered and is_held != (orders.answered == 1):
            self.faults.append(f"{message['queue_id']} is {message['state']} after {orders.answered} orders")


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class _Control(http.client.HTTPConnection):
    """A running relay's control socket: in a tight loop, a program for each verb takes too long."""

    def __init__(self, spool: Path) -> None:
        super().__init__("relay")
        self._spool = spool

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(HANG_S)
        # Its path may be longer than a socket's can be.
        folder = os.open(self._spool, os.O_RDONLY)
        try:
            self.sock.connect(f"/proc/self/fd/{folder}/control.sock")
        finally:
            os.close(folder)


def _ask(spool: Path, path: str, asked: Any) -> bytes:
    with contextlib.closing(_Control(spool)) as control:
        control.request("POST", path, json.dumps(asked))
        reply = control.getresponse()
        content = reply.read()
    if reply.status != 200:
        raise ConnectionError(content)
    return content
