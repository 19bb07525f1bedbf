"""All shipped rules about replies as a page of Markdown: what docs/VERDICTS.md holds.  Pure."""

from collections.abc import Iterable, Iterator

from relay.policy.rules import VerdictRule
from relay.policy.shipped import providers, rules_file

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

A pause of a message that was refused so six times, the last three of them right after others had been
relayed, is its own: an attempt. Of a sender that is refused four times in a row, others having been relayed
each time between, a message that is older than `lifetime` is returned.
"""


def page() -> str:
    """Return the page, with a newline at its end."""
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
    for title, rules in (
        ("Enhanced codes", file.codes),
        ("Wording", file.wording),
        ("Defaults", file.default),
    ):
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
    match preset.get("limits"):
        case tuple() as limits:
            return ", ".join(_limit(limit) for limit in limits)
        case _:
            return "write your own"


def _limit(limit: object) -> str:
    match limit:
        case {"messages": count, "per": per}:
            return f"{count} messages per {per}"
        case {"recipients": count, "per": per}:
            return f"{count} recipients per {per}"
        case _:
            return "?"


def _table(rules: Iterable[VerdictRule]) -> Iterator[str]:
    yield "| phase | code | text | but not | verdict | source |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for rule in rules:
        codes = " ".join((*(rule.code or ()), *(rule.enhanced or ())))
        text = _phrases(rule.text) + (" and the sender" if rule.names_sender else "")
        wait = "" if rule.wait_ns is None else f", at least {rule.wait_ns // 1_000_000_000} s"
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
