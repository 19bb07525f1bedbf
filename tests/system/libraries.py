"""Mail libraries of other languages, installed apart, with the settings of docs/clients.md.

Each runs in a program of its own, which is told one message a line, as JSON, and says in one line whether
the library sent it.  None keeps a message: what it could not send is the caller's.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.system.apart import Apart
from tests.system.snippets import snippet

SENT = b"sent\n"
_DJANGO = """
import json, sys
{settings}
from django.conf import settings
settings.configure(**{{name: value for name, value in dict(globals()).items() if name.isupper()}})
from django.core.mail import EmailMessage
for line in sys.stdin:
    told = json.loads(line)
    try:
        EmailMessage(told["subject"], told["text"], told["sender"], [told["recipient"]]).send()
        print("sent", flush=True)
    except Exception as error:
        print(repr(error), flush=True)
"""
_NODEMAILER = """
{settings}
const lines = require("readline").createInterface({{ input: process.stdin }});
(async () => {{
    for await (const line of lines) {{
        const told = JSON.parse(line);
        const message = {{ from: told.sender, to: told.recipient, subject: told.subject, text: told.text }};
        try {{
            await transport.sendMail(message);
            console.log("sent");
        }} catch (error) {{
            console.log(JSON.stringify(error.message));
        }}
    }}
}})();
"""


@dataclass(frozen=True, slots=True)
class Library:
    """One of them: its snippet's name, its packages, and how a program that uses it runs."""

    name: str
    packages: tuple[str, ...]
    command: tuple[str, ...]
    program: str


LIBRARIES = [
    Library("django", ("python3-django",), ("/usr/bin/python3", "-c"), _DJANGO),
    Library(
        "nodemailer",
        ("nodejs", "node-nodemailer"),
        ("env", "NODE_PATH=/usr/share/nodejs", "node", "-e"),
        _NODEMAILER,
    ),
]


class Program:
    """A program that sends with a library."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self.refusals: list[str] = []
        """Why it did not send a message, each time."""

    def send(self, *, sender: str, recipient: str, subject: str, text: str) -> bool:
        told = {"sender": sender, "recipient": recipient, "subject": subject, "text": text}
        self._stdin.write(json.dumps(told).encode() + b"\n")
        self._stdin.flush()
        said = self._stdout.readline()
        if said == SENT:
            return True
        assert said, "the program ended"
        self.refusals.append(said.decode())
        return False


@contextmanager
def using(machine: Apart, library: Library, smarthost_port: int) -> Iterator[Program]:
    text = library.program.format(settings=snippet(library.name, port=smarthost_port)).lstrip()
    with machine.talk_to(*library.command, text) as process:
        try:
            yield Program(process)
        finally:
            process.kill()
