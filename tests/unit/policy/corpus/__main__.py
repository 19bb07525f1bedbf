"""The corpus of replies and their verdicts as a page of Markdown: `python -m tests.unit.policy.corpus`."""

import sys
from collections.abc import Iterator

from relay.mail.formats import span
from relay.policy.shipped import provider_of, provider_rules, standard_rules
from relay.verdicts.echo import ClientWords
from relay.verdicts.verdict import Judge
from tests.unit.policy.corpus import Case, cases

_BEGINNING = """\
# Replies and their verdicts

Made from the replies in `tests/unit/policy/corpus`, and what the shipped rules
say of each (`relay/policy/verdicts.yaml`, `providers.yaml`), by `make docs`; edit those, not this.
The tests hold each reply to the verdict that it should have.
*By* is the host that said so, where somebody tells; what is said by nobody is judged by the general rules.
"""
_TITLES = {"own": "About us: rate, account, sender", "theirs": "About a recipient or a message"}


def page() -> str:
    """Return the page, with a newline at its end."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield _BEGINNING
    for name, title in _TITLES.items():
        yield from (
            f"## {title}",
            "",
            "| reply | phase | by | verdict | source |",
            "| --- | --- | --- | --- | --- |",
        )
        yield from (_row(case) for case in cases(name))
        yield ""


def _row(case: Case) -> str:
    rules = (*provider_rules(provider_of(None, case.host)), *standard_rules())
    ruling = Judge(rules).ruling(case.phase, case.reply, ClientWords(case.sender))
    wait = "" if ruling.wait_ns is None else f", at least {span(ruling.wait_ns)}"
    probe = "" if ruling.may_probe else ", no probes"
    cells = (f"`` {case.reply} ``", case.phase, case.host, f"{ruling.words}{wait}{probe}", case.source)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
