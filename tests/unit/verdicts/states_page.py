"""Prints docs/states.md: `make docs`."""

import sys
from collections.abc import Iterator

from relay.verdicts.health import TABLE, Effect, Happening, Health

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
| barred | it refused the account and forbids probes; nothing is sent until somebody acts |
| doubted | the shield tripped; nothing is sent until the operator answers, or as in *refused* |
| uncounted | our own history of it cannot be trusted; nothing is sent until it was read and is sound |

The instant of *refused* is an hour later, or as late as the upstream or its rule asks for. Somebody acts by
`relay resume`, by an edit of the account or of its verdicts, or by another password.

## What follows

An empty cell: the state stays as it is.
"""
_MIDDLE = """
## What is done

Where a state or a happening is not listed, nothing is done. Effects are carried out from left to right.
"""


def page() -> str:
    """Return the page, with a newline at its end."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _BEGINNING
    yield f"| | {' | '.join(Health)} |"
    yield f"| --- |{' --- |' * len(Health)}"
    for happening in Happening:
        after = [(health, TABLE[health, happening].health) for health in Health]
        yield f"| {happening} | {' | '.join('' if a is b else b for a, b in after)} |"
    yield _MIDDLE
    yield "| happens | in | effects |"
    yield "| --- | --- | --- |"
    for happening in Happening:
        together: dict[tuple[Effect, ...], list[str]] = {}
        for health in Health:
            together.setdefault(TABLE[health, happening].effects, []).append(health)
        for effects, states in together.items():
            if effects:
                yield f"| {happening} | {', '.join(states)} | {', '.join(map(_name, effects))} |"
    yield ""
    yield "| effect | what it is |"
    yield "| --- | --- |"
    for effect in Effect:
        yield f"| {_name(effect)} | {effect} |"


def _name(effect: Effect) -> str:
    return effect.name.lower().replace("_", " ")


if __name__ == "__main__":
    sys.stdout.write(page())
