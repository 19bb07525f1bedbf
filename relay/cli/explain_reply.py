"""`relay explain-reply`: tells what an upstream's reply means, which rule decides, and what the relay does.

The rules and the shield of a running relay judge, as when such a reply comes for the first time and nothing
was refused before.  Sends nothing and needs no running relay.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from relay.cli.options import default_policy, named_upstream, policy_option, say
from relay.mail.envelope import QueueId
from relay.mail.formats import span
from relay.policy.model import ShieldSettings
from relay.policy.shipped import provider_of, provider_rules, rules_of, standard_rules
from relay.policy.source import read_policy
from relay.smtp.reply import MalformedReply, Phase, Reply, ReplyParser
from relay.verdicts.account import PROBE_NS
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Judge, Rule, Scope, Verdict

_FOLLOWS = {
    Verdict.RELAYED: "{} is relayed",
    Verdict.DEFER: "{} is tried again after a back-off; it expires after `lifetime`",
    Verdict.LATER: "{} and the next ones go in another transaction, at once",
    Verdict.BOUNCE: "{} has failed, and the sender gets a report",
    Verdict.PAUSE: "the upstream is paused; every message waits unchanged: no attempt, no age",
    Verdict.STOP: "the upstream is stopped; every message waits unchanged: no attempt, no age",
}
_OF_SENDER = "mail from this sender waits, untouched; all other mail goes on"


@click.command("explain-reply")
@click.argument("phase", type=click.Choice([str(phase) for phase in Phase]))
@click.argument("text")
@click.option(
    "--upstream", metavar="NAME", help="Judge by the rules of this upstream; default: each that gets mail."
)
@click.option("--host", metavar="HOST", help="Judge as for an upstream at this host, without a policy.")
@policy_option
def explain_reply(
    *,
    phase: str,
    text: str,
    upstream: str | None,
    host: str | None,
    policy_path: Path,
) -> None:
    r"""Explain the reply TEXT to PHASE: which rule decides, and what the relay does.

    TEXT begins with the reply code, as the upstream sends it; `\n` separates the
    lines of a long reply, each with its code.  Without a policy only the shipped rules are used.

    Example: relay explain-reply rcpt "550 5.1.1 no such user"
    """
    reply = _reply(text)
    for name, rules, shield in _judges(policy_path, upstream, host):
        if name:
            say(f"upstream {name}:")
        for line in _explained(rules, shield, Phase(phase), reply):
            say(line)


def _reply(text: str) -> Reply:
    """Parse the text as if the reply came off the wire.  Raises UsageError."""
    lines = (line.strip() for line in text.replace("\\n", "\n").splitlines())
    parser, why = ReplyParser(), ""
    try:
        parser.feed("".join(f"{line}\r\n" for line in lines).encode(errors="surrogateescape"))
        replies = list(iter(parser.next_reply, None))
        if len(replies) == 1:
            return replies[0]
    except MalformedReply as malformed:
        why = f": {malformed}"
    raise click.UsageError(f"TEXT is not one complete SMTP reply, such as `550 5.1.1 no such user`{why}")


def _judges(
    path: Path, name: str | None, host: str | None
) -> Iterator[tuple[str, tuple[Rule, ...], ShieldSettings | None]]:
    """Yield name, rules and shield of each upstream that gets mail, or of the one that is named."""
    if host is not None:
        yield host, (*provider_rules(provider_of(None, host)), *standard_rules()), ShieldSettings()
        return
    if name is None and path == default_policy() and not path.exists():
        yield "", standard_rules(), ShieldSettings()
        return
    # Only its rules are needed; this user may have no right to read its secrets.
    policy = read_policy(path, looks_at_files=False)
    chosen = policy.listed_upstreams if name is None else {name: named_upstream(policy, name)}
    for each, its in policy.upstreams.items():
        if each in chosen:
            yield each, rules_of(each, its), its.shield


def _explained(
    rules: tuple[Rule, ...], shield: ShieldSettings | None, phase: Phase, reply: Reply
) -> Iterator[str]:
    ruling = Judge(rules).ruling(phase, reply)
    yield f"verdict  {ruling.words}"
    yield f"by       {ruling.layer.name.lower()}"
    if ruling.rule is not None:
        yield f"rule     {ruling.rule.place}"
        yield f"source   {ruling.rule.source}"
    decided = _decided(Answer(ruling.verdict, phase, reply, str(reply), ruling=ruling), shield)
    what = "this recipient" if ruling.scope is Scope.RECIPIENT else "the message"
    is_of_sender = decided.scope is Scope.SENDER
    yield f"then     {_OF_SENDER if is_of_sender else _FOLLOWS[decided.verdict].format(what)}"
    if shield is not None and decided.is_doubted:
        yield "shield   no rule matches its text: it fails if refused again after other mail was relayed"
        yield f"shield   {shield.in_a_row} such refusals of different senders stop the upstream"
    if ruling.retry_after_ns is not None:
        yield f"wait     {span(ruling.retry_after_ns)}, as the reply asks"
    elif ruling.wait_ns is not None:
        yield f"wait     {span(ruling.wait_ns)} at least, as the rule says"
    if ruling.window_ns is not None:
        yield f"window   the reply names a limit per {span(ruling.window_ns)}"
    if not ruling.may_probe:
        yield "probe    none: each attempt makes it worse"
    elif decided.verdict is Verdict.STOP:
        yield f"probe    one message every {span(max(PROBE_NS, ruling.wait_ns or 0))}"


def _decided(answer: Answer, settings: ShieldSettings | None) -> Answer:
    """Return the answer as the shield counts it, if this is the first message that is refused."""
    shield = Shield(is_off=True) if settings is None else Shield(settings.in_a_row)
    return shield.judge(Outcome((answer,)), "", QueueId(""), [(0, "")], (0, 0)).answers[0]
