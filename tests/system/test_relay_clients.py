"""The clients of docs/clients.md: each test takes a snippet from the page and hands mail over by it.

A block that a test runs has a name in its opening line: three backticks, `sh name=exim`.
Only Postfix hands over through a restart of the relay; what other clients do meanwhile is not tested.

Debian allows one mail transport agent at a time, and here that is Postfix.  So apt installs another, as an
operator would, in a mount namespace whose root is an overlay of this machine's (`apart`).  Its changes are in
memory: nothing outside changes, and all is gone when the process that holds the namespace ends.  A pid
namespace keeps programs inside from reaching those outside.  The network is shared.  The host name inside is
qualified, because sendmail otherwise waits a minute each time.

The packages must be fetched before, by `FETCH` (`.ci/run` does that), so a test needs no network.
"""

import json
import os
import re
import select
import smtplib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from email import message_from_bytes
from email.policy import SMTP
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.system import postfix
from tests.system.demand import demand, missing_program
from tests.system.relay import PROJECT, RelayProcess
from tests.system.shapes import shape, without_traces
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import HANG_S, ended, free_port, wait_for_port, wait_until

pytestmark = pytest.mark.full

PACKAGES = Path("/var/cache/relay-peers")
FETCH = f"apt-get install -d --no-install-recommends -o Dir::Cache::archives={PACKAGES}"
INSTALL = "apt-get install -q -y --no-download --no-install-recommends"
SURROUNDINGS = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

# In order: mount the overlay and what its root needs, let no package start a service (policy-rc.d), and skip
# pages, their index, syncs and compiled Python when packages are installed: nobody here reads or keeps them.
_SETUP = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs run
rm -f etc/hosts
printf '127.0.0.1 localhost\\n127.0.1.1 front.test %s\\n' "$(hostname)" >etc/hosts
printf '#!/bin/sh\\nexit 101\\n' >usr/sbin/policy-rc.d
chmod 755 usr/sbin/policy-rc.d
printf 'path-exclude=/usr/share/%s/*\\n' doc man locale >etc/dpkg/dpkg.cfg.d/apart
printf 'force-unsafe-io\\n' >>etc/dpkg/dpkg.cfg.d/apart
if [ -e usr/bin/py3compile ]; then ln -sf /bin/true usr/bin/py3compile; fi
rm -f var/lib/man-db/auto-update
echo ready
exec cat
"""


def why_missing(*packages: str) -> str | None:
    if os.geteuid() != 0:
        return "a machine apart needs root"
    if reason := missing_program("unshare", "nsenter"):
        return reason
    absent = [each for each in packages if not (any(PACKAGES.glob(f"{each}_*.deb")) or _is_installed(each))]
    if absent:
        names = " ".join(absent)
        return f"no {names} in {PACKAGES}: mkdir -p {PACKAGES}/partial, {FETCH} {names}"
    return None


def _is_installed(package: str) -> bool:
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True, check=False
    )
    return asked.stdout == b"installed"


# Unpacks packages and all that they depend on, without running their scripts.
_UNPACK = f"""
set -e
simulated=$(apt-get -s --no-install-recommends install "$@")
for each in $(printf '%s\\n' "$simulated" | sed -n 's/^Inst \\([^ ]*\\).*/\\1/p'); do
  dpkg-deb --fsys-tarfile {PACKAGES}/"$each"_*.deb | tar -x --keep-directory-symlink -C /
done
"""


class Apart:
    def __init__(self, home: Path, holder: subprocess.Popen[bytes]) -> None:
        self._enter = [
            "nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", f"--pid=/proc/{holder.pid}/ns/pid_for_children",
            "chroot", str(home / "root"),
        ]  # fmt: skip

    def run(self, *command: str, stdin: bytes = b"") -> bytes:
        """Run a program there as root; return its stdout.  Raises AssertionError unless it exits with 0."""
        ran = subprocess.run(
            [*self._enter, *command],
            input=stdin,
            capture_output=True,
            env=SURROUNDINGS,
            timeout=HANG_S,
            check=False,
        )
        assert ran.returncode == 0, f"{command}: {ran.returncode}\n{ran.stdout.decode()}{ran.stderr.decode()}"
        return ran.stdout

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program there; it ends with the overlay at the latest."""
        return subprocess.Popen([*self._enter, *command], env=SURROUNDINGS, stdin=subprocess.DEVNULL)


@contextmanager
def apart(*packages: str, is_installed: bool = True) -> Iterator[Apart]:
    """Make an overlay with these packages; apt installs and removes others as they require.

    Without `is_installed` their files are only unpacked: a quarter of the time, and enough for libraries.
    """
    with tempfile.TemporaryDirectory(prefix="relay-apart-") as folder:
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _SETUP, "sh", folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            try:
                assert select.select([holder.stdout], [], [], HANG_S)[0], "no machine apart"
                assert holder.stdout.readline() == b"ready\n", "no machine apart: see above"
                machine = Apart(Path(folder), holder)
                if is_installed:
                    machine.run(*INSTALL.split(), "-o", f"Dir::Cache::archives={PACKAGES}", *packages)
                else:
                    machine.run("sh", "-c", _UNPACK, "sh", *packages)
                yield machine
            finally:
                holder.kill()


PORT = "2525"
"""The relay's port on the page."""
SNIPPETS: dict[str, str] = dict(
    re.findall(r"(?ms)^```\w+ name=([\w-]+)\n(.*?)^```$", (PROJECT / "docs" / "clients.md").read_text())
)

Mail = Mapping[str, tuple[str, bytes]]
"""The sender and the content, by recipient."""


def snippet(name: str, *, port: int | None = None) -> str:
    """Return the block of this name, with `PORT` replaced; if `port` is None it must not contain `PORT`."""
    assert (PORT in SNIPPETS[name]) == (port is not None), f"{name} and port {PORT}"
    return SNIPPETS[name].replace(PORT, str(port))


def over_smtp(port: int, sent: Mail) -> None:
    for recipient, (sender, content) in sent.items():
        with smtplib.SMTP("127.0.0.1", port, timeout=HANG_S) as session:
            session.sendmail(sender, [recipient], content, mail_options=["BODY=8BITMIME"])


def by_program(machine: Apart, program: str, sent: Mail) -> None:
    """Hand messages over, with LF at the end of their lines."""
    for recipient, (sender, content) in sent.items():
        machine.run(program, "-i", "-f", sender, "--", recipient, stdin=content.replace(b"\r\n", b"\n"))


def opensmtpd(machine: Apart, lines: str, port: int) -> tuple[str, ...]:
    # Port 25 may be in use here.
    lines = lines.replace("listen on lo", f"listen on lo port {port}")
    machine.run("tee", "/etc/smtpd.conf", stdin=lines.encode())
    return "smtpd", "-d"


def sendmail(machine: Apart, above: str, port: int) -> tuple[str, ...]:
    macros = machine.run("cat", "/etc/mail/sendmail.mc").decode()
    assert macros.count("\nMAILER_DEFINITIONS\n") == 1
    macros = macros.replace("\nMAILER_DEFINITIONS\n", f"\n{above}MAILER_DEFINITIONS\n")
    machine.run("tee", "/etc/mail/sendmail.mc", stdin=macros.encode())
    machine.run("make", "-s", "-C", "/etc/mail", "sendmail.cf")
    machine.run("mkdir", "-p", "/run/sendmail/mta")
    door = f"-ODaemonPortOptions=Addr=127.0.0.1,Port={port}"
    # sendmail takes mail and sends it at once, however busy this machine is.
    return "/usr/libexec/sendmail/sendmail", "-bD", door, "-OQueueLA=1000", "-ORefuseLA=1000"


def exim(machine: Apart, script: str, port: int) -> tuple[str, ...]:
    machine.run("sh", "-e", stdin=script.encode())
    return "exim4", "-bdf", "-oX", f"<; [127.0.0.1]:{port}"


def nullmailer(machine: Apart, script: str, _port: int) -> tuple[str, ...]:
    machine.run("sh", "-e", stdin=script.encode())
    return "setpriv", "--reuid=mail", "--regid=mail", "--clear-groups", "nullmailer-send"


def dma(machine: Apart, lines: str, _port: int) -> tuple[str, ...]:
    machine.run("tee", "/etc/dma/dma.conf", stdin=lines.encode())
    return ()


class Way(NamedTuple):
    """A mail server."""

    packages: tuple[str, ...]
    set_up: Callable[[Apart, str, int], tuple[str, ...]]
    """Configures it by its snippet, and its port if it has one; returns the command of its daemon, if any."""
    has_port: bool
    """It takes mail by SMTP; others by their sendmail."""


WAYS_IN = {
    "exim": Way(("exim4-daemon-light",), exim, has_port=True),
    "opensmtpd": Way(("opensmtpd",), opensmtpd, has_port=True),
    "sendmail": Way(("sendmail-bin", "sendmail-cf"), sendmail, has_port=True),
    "nullmailer": Way(("nullmailer",), nullmailer, has_port=False),
    "dma": Way(("dma",), dma, has_port=False),
}
WITHOUT_QUEUE = ("msmtp", "esmtp")
"""Each hands its message over, or fails; it is also the name of its package."""

SENT: Mail = {f"r{number}@list.test": (f"b+{number}@front.test", shape(number)) for number in range(26)}
LONGEST = b"x" * 998


DJANGO = """
import json, sys
{settings}
from django.conf import settings
settings.configure(**{{name: value for name, value in dict(globals()).items() if name.isupper()}})
from django.core.mail import EmailMessage
for recipient, (sender, subject, text) in json.load(sys.stdin).items():
    EmailMessage(subject, text, sender, [recipient]).send()
"""
TOGETHER = (*WITHOUT_QUEUE, "python3-django", "php-cli")
"""The packages that share one machine apart."""


@pytest.fixture(scope="module")
def programs() -> Iterator[Apart]:
    demand(why_missing(*TOGETHER))
    with apart(*TOGETHER, is_installed=False) as machine:
        yield machine


@pytest.fixture
def relay(tmp_path: Path, upstream: StrictSmarthost) -> Iterator[RelayProcess]:
    with RelayProcess(tmp_path, {"isp": upstream.upstream()}) as relay:
        yield relay


def _arrived(relay: RelayProcess, upstream: StrictSmarthost, count: int, *, traces: int) -> Mail:
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
    assert sorted(SNIPPETS) == sorted(["postfix", "php", "python", "django", *WAYS_IN, *WITHOUT_QUEUE])


@pytest.mark.parametrize("name", WAYS_IN)
def test_a_mail_server_hands_over_its_messages_unchanged(
    name: str, relay: RelayProcess, upstream: StrictSmarthost
) -> None:
    way, port = WAYS_IN[name], free_port()
    sent = SENT
    if name == "dma":  # it takes no line longer than 997 octets
        sent = {
            to: (sender, content.replace(LONGEST, LONGEST[:-1])) for to, (sender, content) in SENT.items()
        }
    demand(why_missing(*way.packages))
    with apart(*way.packages) as machine:
        command = way.set_up(machine, snippet(name, port=relay.port), port)
        with ended(machine.start(*command)) if command else nullcontext() as daemon:
            if way.has_port:
                assert daemon is not None
                wait_for_port(port, daemon)
                over_smtp(port, sent)
            else:
                by_program(machine, "/usr/sbin/sendmail", sent)
            assert _arrived(relay, upstream, len(sent), traces=2) == sent


@pytest.mark.parametrize("name", WITHOUT_QUEUE)
def test_a_client_without_a_queue_hands_over_its_messages_unchanged(
    name: str, programs: Apart, relay: RelayProcess, upstream: StrictSmarthost
) -> None:
    programs.run("tee", f"/etc/{name}rc", stdin=snippet(name, port=relay.port).encode())
    by_program(programs, f"/usr/bin/{name}", SENT)
    assert _arrived(relay, upstream, len(SENT), traces=1) == SENT


def test_django_sends_the_messages_that_it_composes(
    programs: Apart, relay: RelayProcess, upstream: StrictSmarthost
) -> None:
    composed = {
        f"r{number}@there.test": [f"b+{number}@front.test", f"Grüße {number}", f"Zoë,\n.\n{number}"]
        for number in range(3)
    }
    program = DJANGO.format(settings=snippet("django", port=relay.port))
    programs.run("/usr/bin/python3", "-c", program, stdin=json.dumps(composed).encode())

    arrived = _arrived(relay, upstream, len(composed), traces=1)
    messages = {
        to: (sender, message_from_bytes(content, policy=SMTP)) for to, (sender, content) in arrived.items()
    }
    assert composed == {
        to: [sender, message["Subject"], message.get_content().replace("\r\n", "\n").rstrip()]
        for to, (sender, message) in messages.items()
    }


def test_php_mail_goes_by_relay_sendmail_and_fails_without_a_relay(
    programs: Apart, relay: RelayProcess, upstream: StrictSmarthost
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


def test_postfix_hands_over_everything_through_a_restart(
    relay: RelayProcess, upstream: StrictSmarthost
) -> None:
    demand(postfix.why_missing())
    lines = snippet("postfix", port=relay.port).splitlines()
    settings = dict(line.split(" = ") for line in lines)
    with postfix.front(relay.port, **settings | postfix.TRIES_SOON) as front:
        for number, (recipient, written) in enumerate(SENT.items()):
            if number == len(SENT) // 2:
                assert relay.stop() == 0
            over_smtp(front.port, {recipient: written})
        relay.start()
        wait_until(lambda: front.queue() == [])

    assert _arrived(relay, upstream, len(SENT), traces=2) == SENT


def test_the_python_snippet_sends_its_message(relay: RelayProcess, upstream: StrictSmarthost) -> None:
    subprocess.run([sys.executable, "-c", snippet("python", port=relay.port)], check=True)

    sender, content = _arrived(relay, upstream, 1, traces=1)["you@example.net"]
    assert sender == "me@example.org"
    assert content.endswith(b"\r\n\r\nhello\r\n")
