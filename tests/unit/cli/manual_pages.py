"""Generates parts of relay(8), relay-policy(5) and docs/commands.md, and the completions.

They come from the code and from docs/policy.md; what stands around these parts is edited by hand.
`python -m tests.unit.cli.manual_pages` writes the files.  A test fails if they are out of date.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from relay.cli.main import relay

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
COMPLETIONS = {"bash": "relay.bash", "zsh": "_relay", "fish": "relay.fish"}
COMMANDS = ROOT / "docs" / "commands.md"
_EVERYWHERE = {"--policy", "--spool", "--json", "--help"}
"""Options that the page explains once, at its top."""
_MARK = "<!-- above: by `make docs` -->"
_BOLD, _ROMAN = "\x02", "\x03"


def pages() -> dict[Path, str]:
    """Return the content of each generated file."""
    made = {DEPLOY / "man" / "relay.8": relay_8(), DEPLOY / "man" / "relay-policy.5": relay_policy_5()}
    made[COMMANDS] = commands_page()
    for shell, name in COMPLETIONS.items():
        completion = get_completion_class(shell)
        assert completion is not None
        made[DEPLOY / "completions" / name] = (
            completion(relay, {}, "relay", "_RELAY_COMPLETE").source().rstrip() + "\n"
        )
    return made


def relay_8() -> str:
    lines = []
    for name, command in _commands("relay", relay):
        with click.Context(command, info_name=name, terminal_width=78, **relay.context_settings) as context:
            help_lines = map(_escaped, command.get_help(context).splitlines())
        lines += [f".Ss {name}", ".Bd -literal", *help_lines, ".Ed"]
    return _with_subsections("relay.8", lines)


def _with_subsections(name: str, lines: list[str]) -> str:
    """Return a page of deploy/man with its subsections made again; the text around them stays."""
    made = "\n".join([*lines, ""])
    return re.sub(r"(?ms)^\.Ss .*?(?=^\.Sh )", lambda _: made, (DEPLOY / "man" / name).read_text())


def commands_page() -> str:
    """Return the page with the part of each command made again; the text below each mark stays."""
    return re.sub(
        rf"(?ms)^## (relay \S+)\n\n.*?^{_MARK}$",
        lambda part: f"## {part[1]}\n\n{_described(part[1])}{_MARK}",
        COMMANDS.read_text(),
    )


def _described(name: str) -> str:
    """Return the help text and the options of a command; of a group also its verbs and their options."""
    (command,) = (its for each, its in _commands("relay", relay) if each == name)
    verbs = dict(command.commands) if isinstance(command, click.Group) else {}
    told = " ".join(inspect.cleandoc(command.help or "").replace("\b", "").split())
    lines = _wrapped(f"`{_usage(name, command)}`: {told}")
    rows = [(_usage(f"{name} {verb}", its), its.get_short_help_str(200)) for verb, its in verbs.items()]
    params = {param.opts[0]: param for each in (*verbs.values(), command) for param in each.params}
    rows += [
        record
        for option, param in params.items()
        if option[0] == "-" and option not in _EVERYWHERE
        if (record := param.get_help_record(click.Context(command))) is not None
    ]
    if rows:
        lines.append("")
    for what, means in rows:
        lines += _wrapped(f"- `{' '.join(what.split())}`: {' '.join(means.split())}")
    return "\n".join([*lines, ""])


def _wrapped(text: str) -> list[str]:
    indent = "  " * text.startswith("- ")
    return textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _usage(name: str, command: click.Command) -> str:
    return " ".join((name, *command.collect_usage_pieces(click.Context(command))))


def _commands(name: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for verb in group.list_commands(context):
        if (command := group.get_command(context, verb)) is not None:
            yield f"{name} {verb}", command
            if isinstance(command, click.Group):
                yield from _commands(f"{name} {verb}", command)


def relay_policy_5() -> str:
    page, lines = (ROOT / "docs" / "policy.md").read_text(), list[str]()
    for section in re.split(r"(?m)^## ", page)[1:]:
        title, _, text = section.partition("\n")
        tables = [
            [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in text.splitlines()
            if line.startswith("| ")
        ]
        rows = [cells for cells in tables if len(cells) > 3 and cells[0].startswith("`")]
        if rows:
            lines += [f".Ss {_escaped(title)}", ".Bl -tag -width Ds"]
            for key, kind, default, *meanings in rows:
                lines += [f".It Cm {_escaped(key.strip('`'))}"]
                lines += _text(f"{kind}; default: {default}." if default else f"{kind}.")
                for each in meanings:
                    said = each[:1].upper() + each[1:] if each[:1].isalpha() else each
                    lines += _text(said.rstrip(".") + ".")
            lines += [".El"]
    return _with_subsections("relay-policy.5", lines)


def _text(markdown: str) -> list[str]:
    """Return roff lines, each sentence on a new line: code becomes bold, and a link becomes its text."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(markdown.split())).replace("**", "")
    sentences = re.split(r"(?<=[^.][.!?]) +(?=[A-Z`*])", plain)
    wrapped = [
        textwrap.wrap(_bold(each), 78, break_long_words=False, break_on_hyphens=False) for each in sentences
    ]
    return [_escaped(line) for lines in wrapped for line in lines]


def _bold(text: str) -> str:
    """Mark code with control characters that no text holds; `_escaped` makes roff escapes of them."""
    return re.sub(r"`([^`]*)`", f"{_BOLD}\\1{_ROMAN}", text)


def _escaped(text: str) -> str:
    made = text.replace("\\", "\\e").replace("—", "\\(em").replace("…", "...").replace("→", "\\(->")
    made = made.replace(_BOLD, "\\fB").replace(_ROMAN, "\\fR")
    return "\\&" + made if made[:1] in {".", "'"} else made


if __name__ == "__main__":
    for path, content in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
