"""`relay explain-reply`: what a reply of an upstream means for us, which rule says so, and what follows.

Judges and decides as a running relay with this policy would, by the same functions: the first time that
it hears such a reply, with nothing refused before.  Where the policy has routes it says so for each upstream
that they name, and once for those of which it says the same.  `--table` prints all shipped rules.
Sends nothing and needs no relay that runs.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from relay.cli.options import DEFAULTS, POLICY_VARIABLE, default_policy, printable
from relay.mail.envelope import QueueId
from relay.mail.formats import span
from relay.policy.model import ShieldSettings
from relay.policy.rules import VerdictRule
from relay.policy.shipped import provider_of, provider_rules, providers, rules_file, rules_of, standard_rules
from relay.policy.source import place_of, read_policy
from relay.smtp.reply import MalformedReply, Phase, Reply, ReplyParser
from relay.verdicts.decision import Standing, Terms, decide
from relay.verdicts.echo import ClientWords
from relay.verdicts.outcome import Answer, Outcome, gravest
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import BEFORE_MAIL, Judge, Layer, Rule, Ruling, Scope, Verdict

_ASKED = {
    Layer.PHASE: "the phase",
    Layer.OPERATOR: "your rule",
    Layer.PROVIDER: "the provider's rule",
    Layer.CODE: "the code",
    Layer.WORDING: "the wording",
    Layer.DEFAULT: "the first digit: no rule knows this refusal",
}
_IN_DOUBT = "nothing: the deciding words may be the client's own"
_FOLLOWS = {
    Verdict.RELAYED: "{} is relayed",
    Verdict.DEFER: "{} is tried again after a back-off; it expires after `lifetime`",
    Verdict.LATER: "{} and the next ones go in another transaction, at once",
    Verdict.BOUNCE: "{} has failed, and the sender gets a report",
    Verdict.PAUSE: "the upstream rests; every message stays as it is, no attempt, no age",
    Verdict.STOP: "the upstream is stopped until somebody acts; every message stays as it is",
}
_TERMS = Terms(0, 0, lifetime_ns=1, warn_after_ns=None)
"""Of a message that is new: its age plays no part."""
_SENDER_RESTS = "mail from this sender waits, untouched; all other mail goes on"


@click.command("explain-reply")
@click.argument("phase", required=False, type=click.Choice([str(phase) for phase in Phase]))
@click.argument("text", required=False)
@click.option(
    "--upstream", metavar="NAME", help="Judge by the rules of this upstream; default: each that gets mail."
)
@click.option("--sender", default="", metavar="ADDRESS", help="The reverse-path of the message under way.")
@click.option(
    "--recipient",
    "recipients",
    multiple=True,
    metavar="ADDRESS",
    help="A recipient of the message under way; may be repeated.",
)
@click.option("--host", metavar="HOST", help="Judge as for an upstream at this host, without a policy.")
@click.option(
    "--policy",
    "policy_path",
    type=click.Path(path_type=Path),
    envvar=POLICY_VARIABLE,
    metavar="FILE",
    help=f"The policy; default: {DEFAULTS}, else the shipped rules alone.",
)
@click.option("--table", "is_table", is_flag=True, help="Print all shipped rules as a Markdown page.")
def explain_reply(
    *,
    phase: str | None,
    text: str | None,
    upstream: str | None,
    sender: str,
    recipients: tuple[str, ...],
    host: str | None,
    policy_path: Path | None,
    is_table: bool,
) -> int:
    r"""Explain the reply TEXT to PHASE: which rule decides, and what the relay does.

    TEXT begins with the reply code, as the upstream sends it; `\n` stands between the
    lines of a long reply.  Example: relay explain-reply rcpt "550 5.1.1 no such user"
    """
    if is_table:
        click.echo(page(), nl=False)
        return os.EX_OK
    if phase is None or text is None:
        raise click.UsageError("expected a PHASE and a TEXT, or --table")
    reply = _reply(text)
    said: dict[tuple[str, ...], list[str]] = {}
    for judging in _judgings(policy_path, upstream, host):
        ruling = Judge(judging.rules).ruling(Phase(phase), reply, ClientWords(sender, recipients))
        answer = Answer(ruling.verdict, Phase(phase), reply, str(reply), ruling=ruling)
        lines = (*explanation(answer, ruling, judging.settings, judging.path), *_hints(ruling))
        said.setdefault(lines, []).append(judging.name)
    for number, (lines, names) in enumerate(said.items()):
        if len(said) > 1:
            click.echo(f"{chr(10) * bool(number)}of {printable(', '.join(names))}:")
        for line in lines:
            click.echo(printable(line))
    return os.EX_OK


def explanation(
    answer: Answer, ruling: Ruling, settings: ShieldSettings | None, path: Path | None
) -> Iterator[str]:
    """`path` is the policy that the owner's rules are in; `settings` None: its shield is off."""
    yield f"verdict  {ruling.words}"
    rule = ruling.rule
    yield f"by       {_IN_DOUBT if ruling.is_in_doubt else _ASKED[ruling.layer]}"
    if rule is not None:
        yield f"rule     {_place(rule, path)}"
        yield f"source   {rule.source}"
    who = "this recipient" if ruling.scope is Scope.RECIPIENT else "the message"
    decided = answer if answer.phase in BEFORE_MAIL else _decided(answer, settings)
    follows = _SENDER_RESTS if decided.scope is Scope.SENDER else _FOLLOWS[decided.verdict].format(who)
    yield f"then     {follows}"
    if settings is not None and decided.is_doubted:
        yield "shield   doubts it: it fails if it is refused again after other mail went through"
        yield f"shield   {settings.in_a_row} alike of different senders stop the upstream (docs/operating.md)"


def _hints(ruling: Ruling) -> Iterator[str]:
    if ruling.retry_after_ns is not None:
        yield f"wait     {span(ruling.retry_after_ns)}, as the reply asks"
    elif ruling.wait_ns is not None:
        yield f"wait     {span(ruling.wait_ns)} at least, as the rule says"
    if ruling.window_ns is not None:
        yield f"window   the reply speaks of a limit per {span(ruling.window_ns)}"
    if not ruling.may_probe:
        yield "probe    none: each attempt makes it worse"


def _decided(answer: Answer, settings: ShieldSettings | None) -> Answer:
    """Return the answer as it counts: of the first message that the upstream refuses."""
    shield = Shield(is_off=True) if settings is None else Shield(settings.in_a_row)
    standing = Standing(QueueId(""), recipients=("",), left=(0,), asked=(0,), tried=frozenset())
    decision = decide(Outcome((answer,), pause=gravest([answer])), standing, _TERMS, shield)
    return decision.outcome.answers[0]


def _place(rule: Rule, path: Path | None) -> str:
    if rule.layer is not Layer.OPERATOR or path is None:
        return rule.place
    _, name, _, index = rule.place.replace("[", ".").rstrip("]").split(".")
    mark = place_of(path, ("upstreams", name, "verdicts", int(index)))
    return f"{path}:{mark.line}: {rule.place}"


def _reply(text: str) -> Reply:
    """Return a reply as it would come off the wire.  Raises UsageError."""
    lines = [line.strip() for line in text.replace("\\n", "\n").split("\n") if line.strip()]
    if not lines:
        raise click.UsageError("the reply is empty")
    code = lines[0][:3]
    plain = [line[4:] if line.startswith((f"{code}-", f"{code} ")) else line for line in lines[1:]]
    whole = [lines[0][4:], *plain]
    parser = ReplyParser()
    try:
        for number, line in enumerate(whole, start=1):
            mark = " " if number == len(whole) else "-"
            parser.feed(f"{code}{mark}{line}\r\n".encode())
        reply = parser.next_reply()
    except MalformedReply as malformed:
        raise click.UsageError(f"that is no reply of an SMTP server: {malformed}") from None
    if reply is None:
        raise click.UsageError("that is no whole reply of an SMTP server")
    return reply


class _Judging(NamedTuple):
    """By what replies of an upstream are judged."""

    rules: tuple[Rule, ...]
    settings: ShieldSettings | None = ShieldSettings()
    """None: its shield is off."""
    path: Path | None = None
    """Of the policy that they are of; None: they are the shipped ones."""
    name: str = ""


def _judgings(policy_path: Path | None, upstream: str | None, host: str | None) -> list[_Judging]:
    """Return those of each upstream that gets mail, in the order of the policy, unless one is named."""
    if host is not None:
        return [_Judging((*provider_rules(provider_of(None, host)), *standard_rules()))]
    path = policy_path or default_policy()
    if policy_path is None and upstream is None and not path.exists():
        return [_Judging(standard_rules())]
    # What it says of replies counts, whether or not its secrets can be read here.
    policy = read_policy(path, looks_at_files=False)
    if upstream is not None and upstream not in policy.upstreams:
        known = ", ".join(policy.upstreams)
        raise click.UsageError(f"there is no upstream {printable(upstream)} in {path}; known: {known}")
    names = [name for name in policy.upstreams if name in policy.listed_upstreams]
    return [
        _Judging(rules_of(name, its), its.shield, path, name)
        for name in ([upstream] if upstream is not None else names)
        for its in (policy.upstreams[name],)
    ]


_BEGINNING = """\
# What replies mean

Made from `relay/policy/verdicts.yaml` and `relay/policy/providers.yaml` by `make docs`; edit those, not this.

A refusal is looked up from top to bottom, and the first row that matches decides: your own
`upstreams.NAME.verdicts`, the provider's rows, enhanced codes, wording, defaults. A row matches where all
of its columns do. In a phrase `*` is at most 80 characters, case does not count. In our rows a phrase that
makes a refusal not ours (*text* of defer, later and bounce, *but not* of pause and stop) begins a word:
`mail quota` is not in `outmail quota`. Others, and all of yours, are found anywhere. `relay explain-reply`
says which row decides about a reply of yours. Before MAIL no row can touch a message, and only `250` to
the final dot relays.

| verdict | what follows |
| --- | --- |
| defer recipient, defer message | an attempt: tried again after its back-off, until `lifetime` |
| later | the recipient goes in the next transaction, at once; no attempt |
| bounce recipient, bounce message | failed for good, its sender gets a report |
| pause | the upstream rests; messages stay as they are: no attempt, no age. But see below |
| pause sender | the same for one sender; all others go on |
| stop | the upstream rests until somebody acts, or a probe finds it well: hourly, or as seldom as asked for |

A message that was refused so three times backs off for `retry.min`, and others go. After three more, each
right after others had been relayed, the refusal is its own: an attempt. Of a sender that is refused four
times in a row, others having been relayed each time between, a message older than `lifetime` is returned.
"""


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _BEGINNING
    for name, provider in providers().items():
        if not provider.verdicts or not provider.hosts:
            continue
        yield f"## {name}: {', '.join(f'`{host}`' for host in provider.hosts)}"
        yield ""
        yield from _table(provider.verdicts)
    file = rules_file()
    for title, rules in {
        "Enhanced codes": file.codes,
        "Wording": file.wording,
        "Defaults": file.default,
    }.items():
        yield f"## {title}"
        yield ""
        yield from _table(rules)
    yield "## Presets"
    yield ""
    yield "| `provider` | host | limits | note | source, and when it said so |"
    yield "| --- | --- | --- | --- | --- |"
    for name, provider in providers().items():
        preset = provider.preset
        yield (
            f"| {name} | {preset['host']}:{preset['port']}, {preset['tls']} | {_limits(preset)} "
            f"| {_cell(provider.note)} | {_cell(provider.source)}, {provider.checked} |"
        )


def _limits(preset: dict[str, object]) -> str:
    limits = preset.get("limits")
    if not isinstance(limits, list):
        return "write your own"
    units = ("messages", "recipients")
    return ", ".join(
        f"{limit[unit]} {unit} per {limit['per']}" for limit in limits for unit in units if unit in limit
    )


def _table(rules: Iterable[VerdictRule]) -> Iterator[str]:
    yield "| phase | code | text | but not | verdict | source |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for rule in rules:
        codes = " ".join((*(rule.code or ()), *(rule.enhanced or ())))
        text = _phrases(rule.text) + (" and the sender" if rule.names_sender else "")
        wait = "" if rule.wait_ns is None else f", at least {span(rule.wait_ns)}"
        probe = "" if rule.probe else ", no probes"
        but_not = " · ".join(filter(None, (" ".join(rule.but_not_enhanced or ()), _phrases(rule.but_not))))
        yield (
            f"| {' '.join(rule.phase)} | {codes} | {text} | {but_not} "
            f"| {rule.verdict}{wait}{probe} | {_cell(rule.source or '')} |"
        )
    yield ""


def _phrases(phrases: tuple[str, ...] | None) -> str:
    return " · ".join(f"`{phrase}`" for phrase in phrases or ())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
