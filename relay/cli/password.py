"""`relay hash-password`: a line for a listener's users_file."""

import sys

import click
from argon2 import PasswordHasher

from relay.policy.secrets import MAX_PASSWORD_BYTES, USER_NAME


@click.command("hash-password")
@click.argument("name", required=False)
def hash_password(name: str | None) -> None:
    """Make a line for a users_file from a password.

    Asks for the password twice on a terminal, else reads it as one line from stdin.
    Prints NAME:$argon2id$..., or the hash alone without a NAME.
    """
    if name is not None and not USER_NAME.match(name):
        raise click.UsageError("NAME must not be empty, hold a colon or control characters, or start with #")
    hashed = PasswordHasher().hash(_password())
    click.echo(hashed if name is None else f"{name}:{hashed}")


def _password() -> bytes:
    if sys.stdin.isatty():
        typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        password = typed.encode("utf-8")
    else:
        read = sys.stdin.buffer.read(MAX_PASSWORD_BYTES + 2)
        password = read.removesuffix(b"\n").removesuffix(b"\r")
    if not password:
        raise click.UsageError("the password is empty")
    if len(password) > MAX_PASSWORD_BYTES:
        raise click.UsageError(f"the password is longer than {MAX_PASSWORD_BYTES} bytes")
    if any(octet in password for octet in b"\0\r\n"):
        raise click.UsageError("the password holds NUL or a line end")
    return password
