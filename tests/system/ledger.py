"""What a real Postfix took, by its own account: each message at an instant of the upstream's clock.

    with Ledger(limit) as ledger, postfix.smarthost(**ledger.settings, **dovecot.settings) as upstream:

A policy service (Postfix's SMTPD_POLICY_README): Postfix asks it at each RCPT, and once more when it has the
whole content, just before it takes the message.  It says yes to all and remembers when it was asked.  Who
exceeds a limit is counted by the `Witness` of the practice upstream, by arithmetic of its own.
"""

import re
import socketserver
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from relay.mail.envelope import Envelope
from relay.policy.limits import LimitSettings
from relay.practice.witness import Sighting, Witness, Witnessed
from tests.system.mailbox import Mailbox
from tests.system.practice import Seen

ENTRIES = 1_000_000
_OWN_ID = re.compile(rb"\bid ([0-9A-Za-z]+)")


class Ledger:
    def __init__(self, limit: Mapping[str, Any], senders: str = "reject_sender_login_mismatch") -> None:
        """`senders` is what Postfix asks of a sender before it asks here."""
        self.witness = Witness(LimitSettings.model_validate(limit), 0, remember=ENTRIES)
        self.logins: set[tuple[str, str]] = set()
        """By which mechanism who logged in."""
        self.exceeded = 0
        """How many messages were one too many."""
        self.tried: list[tuple[str, int]] = []
        self._senders = senders
        self._began: dict[str, tuple[int, list[str]]] = {}
        """By the id that Postfix gives a transaction: when the first RCPT came, and the recipients."""
        self._seen: list[tuple[Seen, str]] = []
        """With the queue id."""
        self._contents: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Asked)
        self._server.ledger = self
        self._thread = threading.Thread(target=self._server.serve_forever, name="ledger", daemon=True)

    @property
    def settings(self) -> dict[str, str]:
        """Return what a main.cf says to have each message entered here."""
        ask = f"check_policy_service inet:127.0.0.1:{self._server.server_address[1]}"
        return {
            "smtpd_sender_restrictions": f"{self._senders}, {ask}",
            "smtpd_end_of_data_restrictions": ask,
        }

    @property
    def taken(self) -> int:
        """How many messages it has."""
        return len(self._seen)

    def seen(self) -> list[Seen]:
        """Return every transaction that came to its end, in that order."""
        return [seen for seen, _ in self._seen]

    def read(self, mailbox: Mailbox) -> None:
        """Know what arrived; fails unless it is what was entered, for each recipient once."""
        recipients: dict[str, list[str]] = {}
        for arrived in mailbox.arrived():
            found = _OWN_ID.search(arrived.received)
            assert found is not None, arrived.received
            queue_id = found[1].decode()
            recipients.setdefault(queue_id, []).append(arrived.recipient)
            self._contents[queue_id] = arrived.content
        entered = {queue_id: sorted(seen.entry.envelope.recipients) for seen, queue_id in self._seen}
        assert {queue_id: sorted(its) for queue_id, its in recipients.items()} == entered

    def content_of(self, seen: Seen) -> bytes:
        """Return what was taken in a transaction, once the mailbox was read."""
        return self._contents[seen.entry.reply]

    def asked(self, request: Mapping[str, str]) -> None:
        """Enter what Postfix tells."""
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
            self.exceeded += not self.witness.admit(now_ns, len(recipients), now_ns)
            envelope = Envelope(request["sender"], tuple(recipients), 0, "", "", "ESMTP")
            size, queue_id = int(request["size"]), request["queue_id"]
            entry = Sighting(now_ns, envelope, size, "", queue_id, Witnessed.RELAYED)
            self.witness.enter(entry)
            self._seen.append((Seen(began_ns, now_ns, entry), queue_id))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
