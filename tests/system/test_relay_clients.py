"""The clients of docs/clients.md: each test takes a snippet from the page and hands mail over by it.

Only Postfix hands over through a restart of the relay; what other clients do meanwhile is not tested.
"""

import email
import email.policy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.system import apart, fronts, postfix
from tests.system.demand import demand
from tests.system.fronts import Submit
from tests.system.relay import PROJECT
from tests.system.shapes import shape, without_traces
from tests.system.snippets import names, snippet
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_for_change
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

Mail = Mapping[str, tuple[str, bytes]]
"""The sender and the content, by recipient."""
SENT: Mail = {f"r{number}@list.test": (f"b+{number}@front.test", shape(number)) for number in range(26)}
LONGEST = b"x" * 998
DMAS: Mail = {
    recipient: (sender, content.replace(LONGEST, LONGEST[:-1]))
    for recipient, (sender, content) in SENT.items()
}
"""dma takes no line longer than 997 octets."""

WAYS_IN: dict[str, tuple[tuple[str, ...], Callable[[int], AbstractContextManager[Submit]], Mail]] = {
    "exim": (fronts.EXIM, fronts.exim, SENT),
    "opensmtpd": (fronts.OPENSMTPD, fronts.opensmtpd, SENT),
    "sendmail": (fronts.SENDMAIL, fronts.sendmail, SENT),
    "nullmailer": (fronts.NULLMAILER, fronts.nullmailer, SENT),
    "dma": (fronts.DMA, fronts.dma, DMAS),
}
"""For each mail server: its packages, what runs it, and the mail that it gets."""
WITHOUT_QUEUE = {"msmtp": fronts.MSMTP, "esmtp": fronts.ESMTP}


def _composed(number: int, content: bytes) -> tuple[str, str, str]:
    """Return the sender, subject and text of which a library composes a message."""
    text = content.partition(b"\r\n\r\n")[2].decode("utf-8", "replace").replace("\r\n", "\n")
    return f"b+{number}@front.test", f"Grüße {number}", f"Zoë,\n{text}".rstrip()


TEXTS = {
    recipient: _composed(number, content) for number, (recipient, (_, content)) in enumerate(SENT.items())
}
DJANGO = """
import json, sys
{settings}
from django.conf import settings
settings.configure(**{{name: value for name, value in dict(globals()).items() if name.isupper()}})
from django.core.mail import EmailMessage
for recipient, (sender, subject, text) in json.load(sys.stdin).items():
    EmailMessage(subject, text, sender, [recipient]).send()
"""
NODEMAILER = """
{settings}
(async () => {{
    for (const [to, [from, subject, text]] of Object.entries(JSON.parse(require("fs").readFileSync(0)))) {{
        await transport.sendMail({{ from, to, subject, text }});
    }}
}})();
"""
LIBRARIES = {
    "django": (("python3-django",), ("/usr/bin/python3", "-c"), DJANGO),
    "nodemailer": (
        ("nodejs", "node-nodemailer"),
        ("env", "NODE_PATH=/usr/share/nodejs", "node", "-e"),
        NODEMAILER,
    ),
}
"""For each library: its packages, what runs a program, and a program that uses it."""
TOGETHER = (
    *(package for packages in WITHOUT_QUEUE.values() for package in packages),
    *(package for packages, _, _ in LIBRARIES.values() for package in packages),
    "php-cli",
)
"""The packages that share one machine apart."""


@pytest.fixture(scope="module")
def programs() -> Iterator[apart.Apart]:
    demand(apart.why_missing(*TOGETHER))
    with apart.apart(*TOGETHER, is_installed=False) as machine:
        yield machine


@pytest.fixture
def relay(tmp_path: Path, upstream: StrictSmarthost) -> Iterator[WarmRelay]:
    with WarmRelay(tmp_path, {"isp": upstream.upstream()}) as relay:
        yield relay


def _arrived(relay: WarmRelay, upstream: StrictSmarthost, count: int, *, traces: int) -> Mail:
    upstream.wait_until(lambda ledger: ledger.relayed >= count)
    relay.wait_until_empty()
    arrived = {
        recipient: (seen.reverse_path, without_traces(seen.content, traces))
        for seen in upstream.seen()
        for recipient in seen.recipients
    }
    assert len(upstream.seen()) == len(arrived), "something arrived twice"
    return arrived


def test_every_named_snippet_has_a_test() -> None:
    assert sorted(names()) == sorted(["postfix", "php", "python", *WAYS_IN, *WITHOUT_QUEUE, *LIBRARIES])


@pytest.mark.parametrize("name", WAYS_IN)
def test_a_mail_server_hands_over_its_messages_unchanged(
    name: str, relay: WarmRelay, upstream: StrictSmarthost
) -> None:
    packages, run, sent = WAYS_IN[name]
    demand(apart.why_missing(*packages))
    with run(relay.port) as submit:
        for recipient, (sender, content) in sent.items():
            submit(sender, recipient, content)
        assert _arrived(relay, upstream, len(sent), traces=2) == sent


@pytest.mark.parametrize("name", WITHOUT_QUEUE)
def test_a_client_without_a_queue_hands_over_its_messages_unchanged(
    name: str, programs: apart.Apart, relay: WarmRelay, upstream: StrictSmarthost
) -> None:
    submit = fronts.without_queue(programs, name, relay.port)
    for recipient, (sender, content) in SENT.items():
        submit(sender, recipient, content)
    assert _arrived(relay, upstream, len(SENT), traces=1) == SENT


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_sends_the_messages_that_it_composes(
    name: str, programs: apart.Apart, relay: WarmRelay, upstream: StrictSmarthost
) -> None:
    _, command, program = LIBRARIES[name]
    text = program.format(settings=snippet(name, port=relay.port)).lstrip()
    programs.run(*command, text, stdin=json.dumps(TEXTS).encode())

    arrived = _arrived(relay, upstream, len(TEXTS), traces=1)
    assert {recipient: (sender, *_read(content)) for recipient, (sender, content) in arrived.items()} == TEXTS


def _read(content: bytes) -> tuple[str, str]:
    """Return the subject and the text of a message without its last blanks, in which libraries differ."""
    message = email.message_from_bytes(content, policy=email.policy.default)
    return message["Subject"], message.get_content().replace("\r\n", "\n").rstrip()


def test_php_mail_goes_by_relay_sendmail_and_fails_without_a_relay(
    programs: apart.Apart, relay: WarmRelay, upstream: StrictSmarthost
) -> None:
    # The spool is another user's: into a spool of its own the program would put mail without a relay too.
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

    arrived = _arrived(relay, upstream, 1, traces=1)
    assert list(arrived) == ["you@example.net"]
    assert arrived["you@example.net"][1].endswith(b"\r\n\r\none\r\n.two\r\n.\r\n\r\nlast\r\n")


def test_postfix_hands_over_everything_through_a_restart(relay: WarmRelay, upstream: StrictSmarthost) -> None:
    demand(postfix.why_missing())
    lines = snippet("postfix", port=relay.port).splitlines()
    settings = dict(line.split(" = ") for line in lines)
    with postfix.front(relay.port, **settings | postfix.TRIES_SOON) as front:
        for number, (recipient, (sender, content)) in enumerate(SENT.items()):
            if number == len(SENT) // 2:
                assert relay.stop() == 0
            fronts.over_smtp(front.port, sender, recipient, content)
        relay.start()
        wait_for_change(lambda: front.queue() == [] or None, front.home)

    assert _arrived(relay, upstream, len(SENT), traces=2) == SENT


def test_the_python_snippet_sends_its_message(relay: WarmRelay, upstream: StrictSmarthost) -> None:
    subprocess.run([sys.executable, "-c", snippet("python", port=relay.port)], check=True)

    sender, content = _arrived(relay, upstream, 1, traces=1)["you@example.net"]
    assert sender == "me@example.org"
    assert content.endswith(b"\r\n\r\nhello\r\n")
