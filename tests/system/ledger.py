"""Records the messages that a real Postfix takes, each with the instant at which Postfix takes it.

    with Ledger(limit) as ledger, postfix.smarthost(**ledger.settings, **dovecot.settings) as upstream:

It is a policy service (Postfix's SMTPD_POLICY_README).  Postfix asks it at each RCPT, and again when it has
the whole content, just before it takes the message.  The service allows all and remembers when it was asked.
A `Witness` counts whether the limit was exceeded, as for the strict upstream.
"""

import re
import socketserver
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from tests.system.mailbox import Mailbox
from tests.system.witness import Fate, Seen, Witness

_OWN_ID = re.compile(rb"\bid ([0-9A-Za-z]+)")


class Ledger:
    def __init__(self, limit: Mapping[str, Any]) -> None:
        self.witness = Witness(limit)
        self.logins: set[tuple[str, str]] = set()
        """The mechanism and the user name of each login."""
        self.tried: list[tuple[str, int]] = []
        self._began: dict[str, tuple[int, list[str]]] = {}
        """When the first RCPT of a transaction came, and its recipients, by Postfix's id of it."""
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Asked)
        self._server.ledger = self
        self._thread = threading.Thread(target=self._server.serve_forever, name="ledger", daemon=True)

    @property
    def settings(self) -> dict[str, str]:
        ask = f"check_policy_service inet:127.0.0.1:{self._server.server_address[1]}"
        return {
            "smtpd_sender_restrictions": f"reject_sender_login_mismatch, {ask}",
            "smtpd_end_of_data_restrictions": ask,
        }

    def seen(self, mailbox: Mailbox) -> list[Seen]:
        """Return the transactions in the order of their ends, with the content that arrived.

        Fails unless each arrived once for each of its recipients.
        """
        recipients: dict[str, list[str]] = {}
        contents: dict[str, bytes] = {}
        for arrived in mailbox.arrived():
            found = _OWN_ID.search(arrived.received)
            assert found is not None, arrived.received
            queue_id = found[1].decode()
            recipients.setdefault(queue_id, []).append(arrived.recipient)
            contents[queue_id] = arrived.content
        entered = {seen.reply: sorted(seen.recipients) for seen in self.witness.seen}
        assert {queue_id: sorted(its) for queue_id, its in recipients.items()} == entered
        return [replace(seen, content=contents[seen.reply]) for seen in self.witness.seen]

    def asked(self, request: Mapping[str, str]) -> None:
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        with self._lock:
            instance = request["instance"]
            if request["protocol_state"] == "RCPT":
                self._began.setdefault(instance, (now_ns, []))[1].append(request["recipient"])
                return
            assert request["protocol_state"] == "END-OF-MESSAGE", request
            began_ns, recipients = self._began.pop(instance)
            assert int(request["recipient_count"]) == len(recipients), request
            self.logins.add((request["sasl_method"], request["sasl_username"]))
            self.witness.admit(now_ns, len(recipients), now_ns)
            sender, queue_id = request["sender"], request["queue_id"]
            self.witness.enter(Seen(began_ns, now_ns, sender, tuple(recipients), b"", queue_id, Fate.RELAYED))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    ledger: Ledger


class _Asked(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        request: dict[str, str] = {}
        for line in self.rfile:
            key, separator, value = line.decode().rstrip("\n").partition("=")
            if separator:
                request[key] = value
                continue
            self.server.ledger.asked(request)
            request = {}
            self.wfile.write(b"action=DUNNO\n\n")
