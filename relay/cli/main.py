"""The entry point: finds the verb, runs it, and exits with a code of sysexits(3).

Guarantees: exit code 0 if the verb did its work, 64 for wrong usage.  An exception that ENDS names gives its
code and no traceback; a bug of the relay gives 70 and a traceback.  A verb may return another code.
"""

import atexit
import gc
import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LINKS = frozenset({"sendmail", "mailq", "newaliases"})
"""Called by a link with one of these names, this program acts as sendmail(1) does."""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("run", "Accept mail and relay it, in the foreground."),
    "status": ("status", "Show upstreams, limits and the queue by state."),
    "top": ("top", "Watch limits, lanes, upstreams and senders, live."),
    "queue": ("queue", "List the queue, or act on messages in it."),
    "find": ("status", "Find messages, in the queue or already ended."),
    "pause": ("queue", "Send nothing more through an upstream, for a time."),
    "resume": ("queue", "Use a paused or stopped upstream again."),
    "login": ("probe", "Consent to mail through an upstream by OAuth2."),
    "probe": ("probe", "Log in at an upstream, and print each step."),
    "explain-reply": ("explain_reply", "Explain what a reply of an upstream means for the relay."),
    "audit": ("fsck", "Prove from the history that no limit was exceeded."),
    "sendmail": ("sendmail", "Take a message from stdin, as sendmail(1) does."),
    "drain": ("sendmail", "Hand over the messages of a maildir, and remove each once it is taken."),
    "demo": ("demo", "Watch a relay pace mail through a strict upstream, for half a minute."),
    "check": ("check", "Check a policy: print every fault, or what may surprise in it."),
    "plan": ("check", "Tell what an edited policy would do, before it is in force."),
    "export": ("queue", "Write messages as .eml, with their envelopes."),
    "fsck": ("fsck", "Check spool and histories; set damage aside."),
    "spool": ("fsck", "Convert the spool from one engine to another."),
    "database": ("database", "Make and check the tables in PostgreSQL."),
    "hash-password": ("check", "Hash a password for a users_file."),
}
"""For each verb, its file in `relay.cli`, which is loaded when the verb is called, and its summary."""

ENDS: Mapping[str, tuple[int, str]] = {
    "relay.policy.source.PolicyError": (os.EX_CONFIG, "{}"),
    "relay.policy.named_file.SecretError": (os.EX_CONFIG, "{}"),
    "builtins.ModuleNotFoundError": (
        os.EX_CONFIG,
        "PostgreSQL needs the package psycopg: install relay-smarthost[postgresql]",
    ),
    "relay.control.operations.Unreachable": (os.EX_TEMPFAIL, "{}"),
    "relay.spool.interface.SpoolBusy": (os.EX_TEMPFAIL, "the spool is in use, and no relay answers: {}"),
    "relay.spool.interface.WrongSpool": (os.EX_CONFIG, "{}"),
    "relay.spool.interface.SpoolError": (os.EX_TEMPFAIL, "the spool cannot be used now: {}"),
    "relay.spool.database.DatabaseError": (os.EX_TEMPFAIL, "{}"),
    "relay.throttle.history.HistoryError": (os.EX_TEMPFAIL, "the history cannot be used: {}"),
    "sqlite3.Error": (os.EX_TEMPFAIL, "the database of ended messages cannot be read: {}"),
    "builtins.PermissionError": (os.EX_NOPERM, "{}; run this as the user that the relay runs as"),
    "builtins.OSError": (os.EX_IOERR, "{}"),
}
"""Exit code and error text for an exception of a verb, by its class or a base class.

Classes stand here by name, so that `relay --help` answers at once: reading a policy takes 0.3 s to load.
"""


class VerbGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        file, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"relay.cli.{file}"), cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Verbs"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=VerbGroup,
    subcommand_metavar="VERB [ARGUMENT]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="relay-smarthost", prog_name="relay", message="%(prog)s %(version)s")
def relay() -> None:
    """Pace mail through a smarthost: never more than it allows, and nothing lost."""


class _Stdout(io.FileIO):
    """Ends the program if stdout cannot be written; exit code 0 if its reader is gone (`| head`).

    It raises SystemExit, because an OSError in a verb means a failure of the relay or of its disk.
    """

    def write(self, content: "ReadableBuffer", /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            # Discard what is still buffered, so that the flush at exit does not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), self.fileno())
            if isinstance(error, BrokenPipeError):
                sys.exit(os.EX_OK)
            click.echo(f"the output cannot be written: {error.strerror}", err=True)
            sys.exit(os.EX_IOERR)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    # The interpreter would search all objects for garbage as it ends: up to a quarter of a verb's whole time.
    atexit.register(gc.freeze)
    if arguments is None and sys.stdout is not None:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Stdout(sys.stdout.fileno(), "w", closefd=False)),
            encoding=sys.stdout.encoding,
            errors="backslashreplace",  # a character that the terminal lacks ends no verb
            line_buffering=bool(sys.stdout.line_buffering),
        )
    code = _run(arguments)
    click.echo(nl=False)  # flush what is still buffered
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        if arguments is None and (name := os.path.basename(sys.argv[0])) in LINKS:  # noqa: PTH119 - a name, no path
            from relay.cli.sendmail import as_link  # noqa: PLC0415 - imported only when called, as every verb

            return as_link(name, sys.argv[1:])
        outcome = relay.main(args=arguments, prog_name="relay", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return os.EX_USAGE if isinstance(error, click.UsageError) else error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return 130  # 128 + SIGINT, as a shell reports it
    except Exception as error:  # noqa: BLE001 - the last frame: a bug gets an exit code
        return _ended_by(error)
    return outcome if isinstance(outcome, int) else os.EX_OK


def _ended_by(error: Exception) -> int:
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    end = next((ENDS[name] for name in names if name in ENDS), None)
    if end is None or (isinstance(error, ModuleNotFoundError) and error.name != "psycopg"):
        import traceback  # noqa: PLC0415 - only for a bug

        traceback.print_exception(error)
        return os.EX_SOFTWARE
    code, words = end
    of_file = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else ""
    click.echo(words.format(of_file or error), err=True)
    return code
