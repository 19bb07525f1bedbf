"""`relay export`: messages of the queue as files that mail programs read, with their envelopes."""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import click

from relay.cli.locate import asked
from relay.cli.options import Failed, Where, ids_argument, printable, where_options
from relay.cli.queue import echo_content, told
from relay.control.operations import OK, NotDone, Session
from relay.mail.envelope import QueueId
from relay.status.snapshot import detail_to_json

FILE_MODE = 0o600
"""It is other people's mail."""


@click.command()
@ids_argument
@where_options
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write ID.eml and ID.json to this folder; nothing that is there is replaced.",
)
def export(where: Where, ids: Sequence[QueueId], *, output: Path | None) -> int:
    """Write messages of the queue as .eml, each with its envelope.

    The content goes to stdout as it is stored; with --output each message becomes two files, the content
    and its envelope: from whom, to whom and how far, when and from where it came.  `-` reads ids from
    stdin.  Works with the relay up or down, and changes nothing.
    """
    if output is None:
        if len(ids) != 1:
            raise click.UsageError("several messages need --output DIR")
        return echo_content(where, ids[0])
    try:
        output.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"{output}: {error.strerror}", os.EX_CANTCREAT) from error
    with asked(where) as session:
        return told({queue_id: _to_files(session, queue_id, output) for queue_id in ids})


def _to_files(session: Session, queue_id: QueueId, folder: Path) -> str:
    content_path, envelope_path = folder / f"{queue_id}.eml", folder / f"{queue_id}.json"
    made: list[Path] = []
    result = ""
    try:
        shown = session.show(queue_id)
        with _new_file(content_path) as content:
            made.append(content_path)
            for chunk in session.content(queue_id):
                content.write(chunk)
        with _new_file(envelope_path) as envelope:
            made.append(envelope_path)
            envelope.write(json.dumps(detail_to_json(shown), indent=2).encode() + b"\n")
        result = OK
    except NotDone as why:
        result = str(why)
    except OSError as error:
        result = f"{error.filename or folder}: {error.strerror}"
    finally:
        for path in made if result != OK else ():
            # Half of a message must not be taken for all of it.
            with contextlib.suppress(OSError):
                path.unlink()
    if result == OK:
        click.echo(printable(content_path))
    return result


def _new_file(path: Path) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")
