"""`relay explain-reply`: what a reply of an upstream means for us, which rule says so, and what follows.

Judges as a running relay with this policy would; `--table` prints all shipped rules as
the page docs/VERDICTS.md.  Sends nothing and needs no relay that runs.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from relay.cli.options import DEFAULT_POLICY, POLICY_VARIABLE, printable
from relay.cli.verdict_table import page
from relay.policy.shipped import provider_of, provider_rules, rules_of, standard_rules
from relay.policy.source import place_of, read_policy
from relay.smtp.reply import MalformedReply, Phase, Reply, ReplyParser
from relay.verdicts.echo import ClientWords
from relay.verdicts.verdict import Judge, Layer, Rule, Ruling, Scope, Span, Verdict

_ASKED = {
    Layer.PHASE: "the phase",
    Layer.OPERATOR: "your rule",
    Layer.PROVIDER: "the provider's rule",
    Layer.CODE: "the code",
    Layer.WORDING: "the wording",
    Layer.DEFAULT: "the first digit: no rule knows this refusal",
}
_IN_DOUBT = "nothing: the words that would decide may be the client's"
_FOLLOWS = {
    (Verdict.RELAYED, Scope.MESSAGE): "the message is relayed",
    (
        Verdict.DEFER,
        Scope.RECIPIENT,
    ): "this recipient is tried again after a back-off; it expires after `lifetime`",
    (
        Verdict.DEFER,
        Scope.MESSAGE,
    ): "the message is tried again after a back-off; it expires after `lifetime`",
    (Verdict.LATER, Scope.RECIPIENT): "this recipient and the next ones go in another transaction, at once",
    (Verdict.BOUNCE, Scope.RECIPIENT): "this recipient has failed, and the sender gets a report",
    (Verdict.BOUNCE, Scope.MESSAGE): "the message has failed, and the sender gets a report",
    (Verdict.PAUSE, Scope.SENDER): "mail from this sender waits, untouched; all other mail goes on",
    (Verdict.PAUSE, Scope.UPSTREAM): "the upstream rests; every message stays as it is, no attempt, no age",
    (
        Verdict.STOP,
        Scope.UPSTREAM,
    ): "the upstream is stopped until somebody acts; every message stays as it is",
}


@click.command("explain-reply")
@click.argument("phase", required=False, type=click.Choice([str(phase) for phase in Phase]))
@click.argument("text", required=False)
@click.option("--upstream", metavar="NAME", help="Judge by the rules of this upstream; default: the first.")
@click.option("--sender", default="", metavar="ADDRESS", help="The reverse-path of the message under way.")
@click.option(
    "--recipient",
    "recipients",
    multiple=True,
    metavar="ADDRESS",
    help="Whom the reply may be about; may be repeated.",
)
@click.option("--host", metavar="HOST", help="Judge as for an upstream at this host, without a policy.")
@click.option(
    "--policy",
    "policy_path",
    type=click.Path(path_type=Path),
    envvar=POLICY_VARIABLE,
    metavar="FILE",
    help=f"The policy; default: ${POLICY_VARIABLE}, then ./{DEFAULT_POLICY}, else the shipped rules alone.",
)
@click.option("--table", "is_table", is_flag=True, help="Print all shipped rules as Markdown.")
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
    r"""Tell what the reply TEXT to PHASE means, which rule decides, and what the relay does.

    TEXT begins with the reply code, as the upstream sends it; `\n` stands between the
    lines of a long reply.  Example: relay explain-reply rcpt "550 5.1.1 no such user"
    """
    if is_table:
        click.echo(page(), nl=False)
        return os.EX_OK
    if phase is None or text is None:
        raise click.UsageError("expected a PHASE and a TEXT, or --table")
    reply = _reply(text)
    rules, source = _rules(policy_path, upstream, host)
    ruling = Judge(rules).ruling(Phase(phase), reply, ClientWords(sender, recipients))
    for line in explanation(ruling, source):
        click.echo(printable(line))
    return os.EX_OK


def explanation(ruling: Ruling, path: Path | None) -> Iterator[str]:
    """Return a ruling in words, line by line; `path` is the policy that the owner's rules are in."""
    yield f"verdict  {ruling.words}"
    rule = ruling.rule
    yield f"by       {_IN_DOUBT if ruling.is_in_doubt else _ASKED[ruling.layer]}"
    if rule is not None:
        yield f"rule     {_place(rule, path)}"
        yield f"source   {rule.source}"
    yield f"then     {_FOLLOWS[(ruling.verdict, ruling.scope)]}"
    if ruling.retry_after_ns is not None:
        yield f"wait     {_seconds(ruling.retry_after_ns)}, as the reply asks"
    elif ruling.wait_ns is not None:
        yield f"wait     {_seconds(ruling.wait_ns)} at least, as the rule says"
    if ruling.span is not None:
        yield f"window   {_window(ruling.span)}"
    if not ruling.may_probe:
        yield "probe    none: each attempt makes it worse"


def _window(span: Span) -> str:
    return f"the reply speaks of a limit per {span}"


def _seconds(span_ns: int) -> str:
    return f"{span_ns / 1_000_000_000:g} s"


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


def _rules(
    policy_path: Path | None, upstream: str | None, host: str | None
) -> tuple[tuple[Rule, ...], Path | None]:
    """Return the rules to judge by, and the policy that they are from."""
    if host is not None:
        return (*provider_rules(provider_of(None, host)), *standard_rules()), None
    path = policy_path or DEFAULT_POLICY
    if policy_path is None and upstream is None and not path.exists():
        return standard_rules(), None
    # What it says of replies counts, whether or not its secrets can be read here.
    policy = read_policy(path, looks_at_files=False)
    name = upstream or policy.default_upstream
    if name not in policy.upstreams:
        known = ", ".join(policy.upstreams)
        raise click.UsageError(f"there is no upstream {printable(name)} in {path}; known: {known}")
    return rules_of(name, policy.upstreams[name]), path
