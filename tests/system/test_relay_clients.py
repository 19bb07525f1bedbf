"""The ways in, as docs/clients.md tells them: each snippet is taken from the page and used."""

import email
import email.policy
import json
import os
import smtplib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tests.system import apart, fronts, libraries, postfix
from tests.system.demand import demand
from tests.system.fronts import Front
from tests.system.libraries import LIBRARIES, Library
from tests.system.relay import PROJECT
from tests.system.shapes import shape, without_traces
from tests.system.snippets import names, snippet
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_for_change
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

Message = TypeVar("Message")

MESSAGES = 26
DURING = 6
"""How many of them are handed over while there is no relay."""
SENT = {f"r{number}@list.test": (f"b+{number}@front.test", shape(number)) for number in range(MESSAGES)}


TEXTS = {
    f"r{number}@list.test": (
        f"b+{number}@front.test",
        f"Grüße {number}",
        "Zoë,\n" + content.partition(b"\r\n\r\n")[2].decode("utf-8", "replace").replace("\r\n", "\n"),
    )
    for number, (_, content) in enumerate(SENT.values())
}
"""For a library, which composes messages: sender, subject and text."""


@dataclass(frozen=True, slots=True)
class WayIn:
    """A program that hands over what it takes from a program of its host, or over SMTP."""

    name: str
    packages: tuple[str, ...]
    run: Callable[[int], AbstractContextManager[Front]]
    speaks_smtp: bool = False
    longest_line: int = 998
    """Of those that it takes."""

    def sent(self) -> dict[str, tuple[str, bytes]]:
        longest = b"x" * 998
        return {
            recipient: (sender, content.replace(longest, longest[: self.longest_line]))
            for recipient, (sender, content) in SENT.items()
        }


WAYS_IN = [
    WayIn("exim", fronts.EXIM, fronts.exim, speaks_smtp=True),
    WayIn("opensmtpd", fronts.OPENSMTPD, fronts.opensmtpd, speaks_smtp=True),
    WayIn("sendmail", fronts.SENDMAIL, fronts.sendmail, speaks_smtp=True),
    WayIn("nullmailer", fronts.NULLMAILER, fronts.nullmailer),
    WayIn("dma", fronts.DMA, fronts.dma, longest_line=997),
]
WITHOUT_QUEUE = {"msmtp": (fronts.MSMTP, os.EX_TEMPFAIL), "esmtp": (fronts.ESMTP, os.EX_UNAVAILABLE)}
"""Their packages, and what they end with while there is no relay."""
TOGETHER = (
    *(package for packages, _ in WITHOUT_QUEUE.values() for package in packages),
    *(package for library in LIBRARIES for package in library.packages),
    "php-cli",
)
"""What needs no machine of its own."""


@pytest.fixture(scope="module")
def programs() -> Iterator[apart.Apart]:
    demand(apart.why_missing(*TOGETHER))
    with apart.apart(*TOGETHER, is_installed=False) as machine:
        yield machine


@pytest.fixture
def relay(tmp_path: Path, upstream: StrictSmarthost) -> Iterator[WarmRelay]:
    with WarmRelay(tmp_path, {"isp": upstream.upstream()}) as relay:
        yield relay


def _through_a_stop(
    relay: WarmRelay, messages: dict[str, Message], hand_over: Callable[[str, Message], bool]
) -> dict[str, Message]:
    """Hand everything over, some of it while there is no relay; return what was not taken."""
    kept = {}
    for number, (recipient, message) in enumerate(messages.items()):
        if number == MESSAGES // 2:
            assert relay.stop() == 0
        if number == MESSAGES // 2 + DURING:
            relay.start()
        if not hand_over(recipient, message):
            kept[recipient] = message
    return kept


def _over_smtp(front: smtplib.SMTP, relay: WarmRelay) -> None:
    def send(recipient: str, message: tuple[str, bytes]) -> bool:
        sender, content = message
        front.sendmail(sender, [recipient], content, mail_options=["BODY=8BITMIME"])
        return True

    _through_a_stop(relay, SENT, send)


def _arrived(relay: WarmRelay, upstream: StrictSmarthost, *, traces: int) -> dict[str, tuple[str, bytes]]:
    relay.wait_until_empty()
    arrived = {
        recipient: (seen.reverse_path, without_traces(seen.content, traces))
        for seen in upstream.seen()
        for recipient in seen.recipients
    }
    assert len(upstream.seen()) == len(arrived), "something arrived twice"
    return arrived


def test_no_snippet_has_a_name_and_no_test() -> None:
    tested = [way.name for way in WAYS_IN] + [*WITHOUT_QUEUE] + [library.name for library in LIBRARIES]
    assert sorted(names()) == sorted(["postfix", "php", "python", *tested])


@pytest.mark.parametrize("way", WAYS_IN, ids=lambda way: way.name)
def test_a_mail_server_hands_over_everything_through_a_restart(
    way: WayIn, relay: WarmRelay, upstream: StrictSmarthost
) -> None:
    demand(apart.why_missing(*way.packages))
    with way.run(relay.port) as front:
        if way.speaks_smtp:
            with front.connect() as session:
                _over_smtp(session, relay)
        else:

            def submit(recipient: str, message: tuple[str, bytes]) -> bool:
                return front.submit(message[1], sender=message[0], recipient=recipient)

            assert _through_a_stop(relay, way.sent(), submit) == {}
        front.wait_until_empty()

    assert _arrived(relay, upstream, traces=2) == way.sent()


@pytest.mark.parametrize(("name", "status"), [(name, status) for name, (_, status) in WITHOUT_QUEUE.items()])
def test_a_client_without_a_queue_says_what_it_did_not_hand_over(
    name: str, status: int, programs: apart.Apart, relay: WarmRelay, upstream: StrictSmarthost
) -> None:
    client = fronts.without_queue(programs, name, relay.port)

    def submit(recipient: str, message: tuple[str, bytes]) -> bool:
        return client.submit(message[1], sender=message[0], recipient=recipient)

    kept = _through_a_stop(relay, SENT, submit)
    assert len(kept) == DURING
    assert client.statuses == {os.EX_OK, status}
    assert all(submit(recipient, message) for recipient, message in kept.items())

    assert _arrived(relay, upstream, traces=1) == SENT


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_a_library_sends_what_it_says_it_sent(
    library: Library, programs: apart.Apart, relay: WarmRelay, upstream: StrictSmarthost
) -> None:
    with libraries.using(programs, library, relay.port) as program:

        def send(recipient: str, message: tuple[str, str, str]) -> bool:
            sender, subject, text = message
            return program.send(sender=sender, recipient=recipient, subject=subject, text=text)

        kept = _through_a_stop(relay, TEXTS, send)
        assert len(kept) == DURING, program.refusals
        assert all(send(recipient, message) for recipient, message in kept.items()), program.refusals

    arrived = {
        recipient: (sender, *_read(content))
        for recipient, (sender, content) in _arrived(relay, upstream, traces=1).items()
    }
    assert arrived == {recipient: (*rest, text.rstrip()) for recipient, (*rest, text) in TEXTS.items()}


def test_mail_of_php_goes_by_relay_sendmail_or_not_at_all(
    programs: apart.Apart, relay: WarmRelay, upstream: StrictSmarthost
) -> None:
    # Of a spool that is not the caller's own: else its mail would go there, relay or none.
    policy = json.dumps(relay.policy | {"spool": "/var/spool/relay"})
    programs.run("sh", "-c", "mkdir -p /var/spool/relay && chown mail /var/spool/relay")
    programs.run("tee", "/etc/relay.yaml", stdin=policy.encode())
    ours = f"cd {PROJECT} && exec {sys.executable} -m relay"
    settings = snippet("php").replace("/opt/relay/.venv/bin/relay", ours)
    programs.run("tee", "/etc/php.ini", stdin=settings.encode())

    def mail(recipient: str) -> bytes:
        code = f'var_dump(mail("{recipient}", "dots", "one\\n.two\\n.\\n\\nlast", "From: me@example.org"));'
        php = ("php8.2", "-c", "/etc/php.ini", "-r", code)
        return programs.run("env", "RELAY_POLICY=/etc/relay.yaml", *php)

    assert mail("you@example.net") == b"bool(true)\n"
    assert relay.stop() == 0
    assert mail("nobody@example.net") == b"bool(false)\n"
    relay.start()

    arrived = _arrived(relay, upstream, traces=1)
    assert list(arrived) == ["you@example.net"]
    assert arrived["you@example.net"][1].endswith(b"\r\n\r\none\r\n.two\r\n.\r\n\r\nlast\r\n")


def _read(content: bytes) -> tuple[str, str]:
    """Return the subject and the text of a message, less what ends it: libraries differ in that."""
    message = email.message_from_bytes(content, policy=email.policy.default)
    return message["Subject"], message.get_content().replace("\r\n", "\n").rstrip()


def test_postfix_hands_over_everything_through_a_restart(relay: WarmRelay, upstream: StrictSmarthost) -> None:
    demand(postfix.why_missing())
    lines = snippet("postfix", port=relay.port).splitlines()
    settings = dict(line.split(" = ") for line in lines)
    with postfix.front(relay.port, **settings | postfix.TRIES_SOON) as front:
        with smtplib.SMTP("127.0.0.1", front.port, timeout=60) as session:
            _over_smtp(session, relay)
        wait_for_change(lambda: front.queue() == [] or None, front.home)

    assert _arrived(relay, upstream, traces=2) == SENT


def test_the_python_of_the_page_sends_its_message(relay: WarmRelay, upstream: StrictSmarthost) -> None:
    subprocess.run([sys.executable, "-c", snippet("python", port=relay.port)], check=True)

    sender, content = _arrived(relay, upstream, traces=1)["you@example.net"]
    assert sender == "me@example.org"
    assert content.endswith(b"\r\n\r\nhello\r\n")
