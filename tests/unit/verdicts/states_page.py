"""Prints docs/states.md: `make docs`."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from relay.verdicts.health import TABLE, Effect, Happening, Health
from relay.verdicts.operator_pause import WORDS, Word

_BEGINNING = """\
# The states of an upstream

Made from `relay/verdicts/health.py` by `make docs`; edit that, not this.

An upstream is in one of these states. A refusal that is about us changes the state of the upstream, never
that of the message: it stays as it was, and the time of a rest is no age of it.

| state | what it means |
| --- | --- |
| untried | as *used*, and no transaction and no refusal has shown yet whether it works |
| used | mail goes, by connections and limits |
| proving | one transaction at a time until one has gone well; a small one after a refusal for too much |
| paused | it refused us; nothing is sent until an instant, then it is *proving* |
| refused | it refused the account; nothing is sent until somebody acts, or an instant: then it is *proving* |
| barred | it refused the account and forbids probes; nothing is sent until somebody acts |
| doubted | the shield tripped; nothing is sent until the operator answers, or as in *refused* |
| uncounted | our own history of it cannot be trusted; nothing is sent until it was read and is sound |

The instant of *refused* is an hour later, or as late as the upstream or its rule asks for. Somebody acts by
`relay resume`, by an edit of the account or of its verdicts, or by another password.

Beside the state stands the operator's word (`relay pause`): [below](#the-operators-pause). Nothing is sent
while either forbids it, and the time of both is no age of a message.

`upstream_resumed` is told once something went well in *proving*, so a probe that is refused again tells only
`upstream_proving` and then why it rests.

## What follows

An empty cell: the state stays as it is.
"""
_MIDDLE = """
## What is done

Where a state or a happening is not listed, nothing is done. Effects are carried out from left to right.
"""


_WORDS = """
## The operator's pause

Made from `relay/verdicts/operator_pause.py`. A rest that is over while the operator's pause lasts ends with
it. The word is heard ahead of the state, so `relay resume` ends both.

| word | what it means |
| --- | --- |
| free | no pause of the operator's |
| paused for a time | nothing is sent until an instant (`--for`), then one message first |
| paused until resume | nothing is sent until `relay resume`, then one message first |

An empty cell: the word stays as it is.
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
    yield from _effects({cell: effects for cell, (_, effects) in TABLE.items()}, Health)
    yield _WORDS
    yield f"| | {' | '.join(Word)} |"
    yield f"| --- |{' --- |' * len(Word)}"
    for happening in Happening:
        words = [(word, WORDS[word, happening].word) for word in Word]
        if any(WORDS[word, happening] != (word, ()) for word in Word):
            yield f"| {happening} | {' | '.join('' if a is b else b for a, b in words)} |"
    yield "| anything else | | | |"
    yield ""
    yield from _effects({cell: effects for cell, (_, effects) in WORDS.items()}, Word)
    yield ""
    yield "| effect | what it is |"
    yield "| --- | --- |"
    for effect in Effect:
        yield f"| {_name(effect)} | {effect} |"


def _effects(
    done: Mapping[tuple[Any, Happening], tuple[Effect, ...]], states: Iterable[str]
) -> Iterator[str]:
    yield "| happens | in | effects |"
    yield "| --- | --- | --- |"
    for happening in Happening:
        together: dict[tuple[Effect, ...], list[str]] = {}
        for state in states:
            together.setdefault(done[state, happening], []).append(state)
        for effects, alike in together.items():
            if effects:
                yield f"| {happening} | {', '.join(alike)} | {', '.join(map(_name, effects))} |"


def _name(effect: Effect) -> str:
    return effect.name.lower().replace("_", " ")


if __name__ == "__main__":
    sys.stdout.write(page())
