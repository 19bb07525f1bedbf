"""Prints docs/states.md: `make docs`."""

import sys
from collections.abc import Iterator

from relay.verdicts.health import TABLE, Happening, Health

_BEGINNING = """\
# The states of an upstream

Made from `relay/verdicts/health.py` by `make docs`; edit that, not this.

An upstream is in one of these states. A refusal that is about us changes the state of the upstream, never
that of the message: it stays as it was, and the time of a rest is no age of it.

| state | what it means |
| --- | --- |
| used | mail goes, by connections and limits |
| proving | one transaction at a time until one has gone well; a small one after a refusal for too much |
| paused | it refused us; nothing is sent until an instant, then it is *proving* |
| refused | it refused the account; nothing is sent until somebody acts, or an instant: then it is *proving* |
| stopped | as *refused*, over a restart too: the shield tripped; or no probe is allowed: no instant ends it |

The instant of *refused* and *stopped* is an hour later, or as late as the upstream or its rule asks for.
Somebody acts by `relay resume`, by an edit of the account or of its verdicts, or by another password.

## What follows

An empty cell: the state stays as it is. What is over at a restart ends there.
"""
_END = """
## The operator's pause

An operator's pause (`relay pause`) and a history that fails stand beside the state: nothing is sent while
any of them lasts, and the time of all is no age of a message. What the upstream says meanwhile changes the
state, and counts when they are over. A second `relay pause` takes the place of the first; its time or
`relay resume` ends it, and a restart goes on with it. A history that fails is shown as *stopped*, and read
again each minute.

## What is kept and told

Each change is kept on disk (`HISTORY.pause`) and told once: `upstream_paused` where it begins to be
*paused*, or is for longer; `upstream_stopped` for *refused*, *stopped* and a history that fails;
`upstream_proving`; `operator_paused` and `operator_pause_ended`. `upstream_resumed` is told once something
went well in *proving*, so a probe that is refused again tells only `upstream_proving` and then why it
rests.

A graver refusal takes the place of a lighter one: *paused*, *refused*, *stopped*, in this order. A second
of the same kind only makes a pause longer, if it asks for that.
"""


def page() -> str:
    """Return the page, with a newline at its end."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _BEGINNING
    yield f"| | {' | '.join(Health)} |"
    yield f"| --- |{' --- |' * len(Health)}"
    for happening in Happening:
        after = [(health, TABLE[health, happening]) for health in Health]
        yield f"| {happening} | {' | '.join('' if a is b else b for a, b in after)} |"
    yield _END


if __name__ == "__main__":
    sys.stdout.write(page())
