"""What an upstream says in another encoding, or to steer a terminal: told cleaned, wherever it is told."""

import json
import smtplib
from pathlib import Path

import pytest

from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_until
from tests.system.warm import WarmRelay

SENDER = "corpus@example.org"
LIMIT = {"messages": 1000, "per": "1m"}
TEXTS = {
    "gbk": "用户不存在".encode("gbk"),
    "latin-1": "Empfänger ungültig".encode("latin-1"),
    "utf-8": "Empfänger ungültig".encode(),
    "invalid": b"\xff\xfe\xc3(\xed\xa0\x80",
    "steering": b"\x1b]0;title\x07\x1b[2J\x9b31m\x08\x7f\xe2\x80\xae<script>alert(1)</script>",
}
REFUSED, DEFERRED = ([f"{fate}-{name}@corpus.test" for name in TEXTS] for fate in ("refused", "deferred"))
GOOD = "good@corpus.test"


def is_clean(text: str) -> bool:
    return all(each.isprintable() or each in "\r\n\t" for each in text)


@pytest.mark.full
def test_a_reply_in_any_octets_is_told_cleaned_and_understood(tmp_path: Path) -> None:
    retry = {"min": "1h", "max": "1h", "lifetime": "5d"}
    with StrictSmarthost(tmp_path, LIMIT, seed=1) as host:
        for name, octets in TEXTS.items():
            text = octets.decode("utf-8", "surrogateescape")
            host.refusals |= {
                f"refused-{name}@": f"550 5.1.1 {text}",
                f"deferred-{name}@": f"450 4.2.1 {text}",
            }
        with WarmRelay(tmp_path, {"isp": host.upstream()}, retry=retry) as relay:
            with smtplib.SMTP("127.0.0.1", relay.port) as client:
                client.sendmail(SENDER, [GOOD, *REFUSED, *DEFERRED], "Subject: x\r\n\r\nx\r\n")
            host.wait_until(lambda ledger: ledger.relayed == 2)
            wait_until(lambda: [each["state"] for each in relay.queue()] == ["deferred"])
            (message,) = relay.queue()
            shown = [
                relay.command(*verb).stdout
                for verb in (
                    ("queue",),
                    ("queue", "show", message["queue_id"]),
                    ("queue", "show", "--json", message["queue_id"]),
                    ("status",),
                    ("status", "--json"),
                    ("find", "--json", "corpus.test"),
                )
            ]
            pages = [relay.get("/"), relay.get("/status.json")]
        log = "\n".join(relay.log())
    (report,) = (each.content for each in host.seen() if each.recipients == (SENDER,))

    assert (GOOD,) in [each.recipients for each in host.seen()]
    recipients = {each["address"]: each for each in json.loads(shown[2])["recipient_statuses"]}
    assert all(report.count(f"Final-Recipient: rfc822; {each}".encode()) == 1 for each in REFUSED)
    assert report.count(b"Diagnostic-Code: smtp; 550 5.1.1") == len(REFUSED)
    assert all(recipients[each]["text"].startswith("450 4.2.1 ") for each in DEFERRED)
    assert all(f"<{each}>" in log for each in (*REFUSED, *DEFERRED))
    assert is_clean(report.decode("ascii"))
    assert [text for text in (*shown, *pages, log) if not is_clean(text)] == []
    assert [page for page in pages[:1] if "<script>alert" in page] == []
