"""What an upstream says in another encoding, or to steer a terminal: told cleaned, wherever it is told."""

import asyncio
import json
import smtplib
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.system.corpus import OFFERS, SENDER, Relay, Upstream, comes_true, free_port

TEXTS = {
    "gbk": "用户不存在".encode("gbk"),
    "latin-1": "Empfänger ungültig".encode("latin-1"),
    "utf-8": "Empfänger ungültig".encode(),
    "invalid": b"\xff\xfe\xc3(\xed\xa0\x80",
    "steering": b"\x1b]0;title\x07\x1b[2J\x9b31m\x08\x7f\xe2\x80\xae<script>alert(1)</script>",
}
REFUSED = {f"refused-{name}@corpus.test": b"550 5.1.1 " + text + b"\r\n" for name, text in TEXTS.items()}
DEFERRED = {f"deferred-{name}@corpus.test": b"450 4.2.1 " + text + b"\r\n" for name, text in TEXTS.items()}
GOOD = "good@corpus.test"


@asynccontextmanager
async def relaying(folder: Path) -> AsyncIterator[tuple[Relay, Upstream, str]]:
    upstream, http = Upstream(OFFERS), f"127.0.0.1:{free_port()}"
    upstream.says = REFUSED | DEFERRED
    retry = {"min": "1h", "max": "1h", "lifetime": "5d"}
    async with upstream.serving() as port, Relay(folder, port, http=http, retry=retry).running() as relay:
        yield relay, upstream, f"http://{http}"


def hand_over(relay: Relay) -> None:
    with smtplib.SMTP("127.0.0.1", relay.port) as client:
        client.sendmail(SENDER, [GOOD, *REFUSED, *DEFERRED], "Subject: x\r\n\r\nx\r\n")


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        octets: bytes = answer.read()
    return octets


def is_clean(text: str) -> bool:
    return all(each.isprintable() or each in "\r\n\t" for each in text)


@pytest.mark.full
async def test_a_reply_in_any_octets_is_told_cleaned_and_understood(tmp_path: Path) -> None:
    async with relaying(tmp_path) as (relay, upstream, url):
        await asyncio.to_thread(hand_over, relay)

        async def is_told() -> bool:
            return SENDER in upstream.arrived and [each["state"] for each in await relay.queue()] == [
                "deferred"
            ]

        assert await comes_true(is_told)
        (message,) = await relay.queue()
        shown = [
            (await relay.command(*verb))[1]
            for verb in (
                ("queue",),
                ("queue", "show", message["queue_id"]),
                ("queue", "show", "--json", message["queue_id"]),
                ("status",),
                ("status", "--json"),
                ("find", "--json", "corpus.test"),
            )
        ]
        pages = [
            (await asyncio.to_thread(fetched, f"{url}{path}")).decode() for path in ("/", "/status.json")
        ]
        log = (relay.folder / "log").read_text("utf-8")
        (report,) = upstream.arrived[SENDER]

    assert GOOD in upstream.arrived
    recipients = {each["address"]: each for each in json.loads(shown[2])["recipient_statuses"]}
    assert all(report.count(f"Final-Recipient: rfc822; {each}".encode()) == 1 for each in REFUSED)
    assert report.count(b"Diagnostic-Code: smtp; 550 5.1.1") == len(REFUSED)
    assert all(recipients[each]["text"].startswith("450 4.2.1 ") for each in DEFERRED)
    assert all(f"<{each}>" in log for each in (*REFUSED, *DEFERRED))
    assert is_clean(report.decode("ascii"))
    assert [text for text in (*shown, *pages, log) if not is_clean(text)] == []
    assert [page for page in pages[:1] if "<script>alert" in page] == []
