"""The entry point: finds the verb, runs it, and exits as sysexits(3) says.

Guarantees: 0 where the verb did its work, 64 for a wrong call, 78 for a policy or a
secret that is not good (every fault on stderr, no traceback), 70 with a traceback for a
bug of ours; a verb may return another code, such as 75 for "try later".
"""

import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LINKS = frozenset({"sendmail", "mailq", "newaliases"})
"""Names of a link to this program under which it acts as sendmail(1) does."""


class Command(NamedTuple):
    module: str
    name: str
    summary: str


COMMANDS: dict[str, Command] = {
    "run": Command("relay.cli.run", "run", "Accept mail and relay it, in the foreground."),
    "status": Command("relay.cli.operate", "status", "Show upstreams, limits and the queue by state."),
    "top": Command("relay.cli.top.command", "top", "Watch limits, lanes, upstreams and senders, live."),
    "queue": Command("relay.cli.operate", "queue", "List the queue, or act on messages in it."),
    "find": Command("relay.cli.find", "find", "Find a message, in the queue and among what ended."),
    "pause": Command("relay.cli.pause", "pause", "Send nothing more through an upstream, for a time."),
    "resume": Command("relay.cli.operate", "resume", "Use a paused or stopped upstream again."),
    "login": Command("relay.cli.probe", "login", "Consent to mail through an upstream by OAuth2."),
    "probe": Command("relay.cli.probe", "probe", "Log in at an upstream, and tell each step."),
    "explain-reply": Command(
        "relay.cli.explain_reply", "explain_reply", "Explain what a reply of an upstream means for the relay."
    ),
    "audit": Command("relay.cli.audit", "audit", "Prove from the history that no limit was exceeded."),
    "sendmail": Command(
        "relay.cli.local_mail.sendmail", "sendmail", "Take a message from stdin, as sendmail(1) does."
    ),
    "drain": Command(
        "relay.cli.local_mail.drain",
        "drain",
        "Hand over the messages of a maildir, and remove each once it is taken.",
    ),
    "demo": Command(
        "relay.cli.demo", "demo", "Watch it pace mail through a strict upstream, for half a minute."
    ),
    "check": Command("relay.cli.check", "check", "Check a policy: print every fault, or a summary."),
    "plan": Command("relay.cli.plan", "plan", "Tell what an edited policy would do, before it is in force."),
    "export": Command("relay.cli.spool.export", "export", "Write messages as .eml, with their envelopes."),
    "fsck": Command("relay.cli.spool.fsck", "fsck", "Check the spool and the histories; changes nothing."),
    "spool": Command("relay.cli.spool.convert", "spool", "Convert the spool from one engine to another."),
    "hash-password": Command("relay.cli.password", "hash_password", "Hash a password for a users_file."),
}


class VerbGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        verb = COMMANDS.get(cmd_name)
        if verb is None:
            return None
        command = getattr(importlib.import_module(verb.module), verb.name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{verb.module}.{verb.name} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.summary) for name, verb in COMMANDS.items()])


@click.group(
    cls=VerbGroup,
    subcommand_metavar="VERB [ARGUMENT]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="relay-smarthost", prog_name="relay", message="%(prog)s %(version)s")
def relay() -> None:
    """Pace mail through a smarthost: never more than it allows, and nothing lost."""


def _as_link(name: str) -> int:
    from relay.cli.local_mail.sendmail import as_link  # noqa: PLC0415 - as every verb, only when it is called

    return as_link(name, sys.argv[1:])


class _Stdout(io.FileIO):
    """Ends the program where it cannot be written: as a success once its reader has seen enough (`| head`).

    By SystemExit: for a verb an OSError is a failure of a disk of the relay, or of the relay.
    """

    def write(self, content: "ReadableBuffer", /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            # What is still buffered goes nowhere, without a complaint at the exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), self.fileno())
            if isinstance(error, BrokenPipeError):
                sys.exit(os.EX_OK)
            click.echo(f"the output cannot be written: {error.strerror}", err=True)
            sys.exit(os.EX_IOERR)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    if arguments is None and sys.stdout is not None:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Stdout(sys.stdout.fileno(), "w", closefd=False)),
            encoding=sys.stdout.encoding,
            errors=sys.stdout.errors,
            line_buffering=bool(sys.stdout.line_buffering),
        )
    code = _run(arguments)
    click.echo(nl=False)  # what is still buffered
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        if arguments is None and (name := os.path.basename(sys.argv[0])) in LINKS:  # noqa: PTH119 - a name, no path
            return _as_link(name)
        outcome = relay.main(args=arguments, prog_name="relay", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return os.EX_USAGE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return 130  # 128 + SIGINT, as a shell reports it
    except Exception as error:  # noqa: BLE001 - the last frame: a bug ends as sysexits says
        return _ended_by(error)
    return outcome if isinstance(outcome, int) else 0


def _ended_by(error: Exception) -> int:
    # Imported only here: `relay --help` is an answer at once, and what reads a policy takes 0.3 s to load.
    from relay.policy.faults import PolicyError  # noqa: PLC0415 - see above
    from relay.policy.secrets import SecretError  # noqa: PLC0415 - see above

    if isinstance(error, PolicyError | SecretError):
        click.echo(str(error), err=True)
        return os.EX_CONFIG
    traceback.print_exception(error)
    return os.EX_SOFTWARE
