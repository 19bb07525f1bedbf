"""The state of an upstream, and the table of what changes it.  Pure.

`TABLE` says for each state and each happening what the state is then, and what is done about it;
`relay.sender.upstream_health` carries that out.  docs/states.md prints it.

A refusal that is about us pauses or stops the upstream, not the message.  When that is over, one
transaction goes first and has to prove that the upstream is well (PROVING): releasing the whole backlog
at the end of a pause is how accounts get blocked for good.
"""

import enum
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict


class Health(enum.StrEnum):
    USED = "used"
    PROVING = "proving"
    """One transaction at a time, until one has gone well."""
    PAUSED = "paused"
    """Refused us; used again at an instant."""
    REFUSED = "refused"
    """Refused the account; one transaction looks into it at an instant, unless an operator acts before."""
    BARRED = "barred"
    """Refused the account, and each attempt makes it worse: until an operator acts."""
    DOUBTED = "doubted"
    """Its refusals look like one of us, and the shield asks the operator; else as REFUSED."""
    UNCOUNTED = "uncounted"
    """Our own history of it cannot be trusted, so nothing may be sent; it is read anew at an instant."""


STOPPED = frozenset({Health.REFUSED, Health.BARRED, Health.DOUBTED, Health.UNCOUNTED})
"""An operator has to act, or a look has to find it well."""
RESTING = STOPPED | {Health.PAUSED}
"""Nothing is sent."""


class Happening(enum.StrEnum):
    PAUSE = "a refusal that pauses"
    STOP = "a refusal of the account"
    BAR = "a refusal of the account that allows no probes"
    DOUBT = "the shield trips"
    PROOF = "something went well"
    OVER = "its time is over"
    RESUME = "somebody acts"
    """`relay resume`, an edit of the account or of its verdicts, or another password."""
    FAULT = "the history fails"
    SOUND = "the history is sound"
    RESTART = "a restart"
    LATE_RESTART = "a restart after its time"


GRAVITY = (Happening.PAUSE, Happening.STOP, Happening.DOUBT, Happening.BAR)
"""The refusals, the gravest last."""


class Effect(enum.StrEnum):
    """What is done about it; docs/states.md prints the text."""

    SLOW = "begin with one recipient if it was for too much"
    SLOW_AGAIN = "begin with one recipient if mail was refused twice in a row"
    MORE = "one more refusal in a row"
    REST = "rest for as long as it asks, or as our back-off says"
    LENGTHEN = "rest longer, tell and record that, if it asks for longer"
    LOOK_LATER = "look again later"
    COUNT = "count a pause in the metrics"
    DOUBT = "the shield's question is open"
    SETTLE = "the shield's question is answered; forget what was put off"
    TRUST = "none in a row, and more recipients a transaction"
    END = "end the rest, and count that"
    PUT_OFF = "hear it when the history is sound, or after a restart"
    HEAR = "hear the gravest that was put off, whose time may be over by now"
    RECORD = "keep it on disk"
    TELL_PAUSED = "tell `upstream_paused`"
    TELL_STOPPED = "tell `upstream_stopped`"
    TELL_RESUMED = "tell `upstream_resumed`"
    LEARN = "compare it with our history, if it is the first in a row"


class Cell(NamedTuple):
    health: Health
    effects: tuple[Effect, ...] = ()
    """In the order in which they are carried out."""


_S, _H, _E = Health, Happening, Effect
_SAME = None
_PAUSE = (_E.COUNT, _E.MORE, _E.REST, _E.RECORD, _E.TELL_PAUSED, _E.LEARN)
_STOP = (_E.MORE, _E.REST, _E.RECORD, _E.TELL_STOPPED)
_DOUBT = (_E.DOUBT, *_STOP)
_USE = (_E.END, _E.RECORD, _E.TELL_RESUMED)
_GO_ON = (_E.SLOW_AGAIN, _E.COUNT, _E.REST, _E.RECORD)
_LASTING = (_S.BARRED, _S.DOUBTED)

_ROWS: tuple[tuple[Happening, tuple[Health, ...], Health | None, tuple[Effect, ...]], ...] = (
    (_H.PAUSE, (_S.USED,), _S.PAUSED, (_E.SLOW, *_PAUSE)),
    (_H.PAUSE, (_S.PROVING,), _S.PAUSED, (_E.SLOW_AGAIN, *_PAUSE)),
    (_H.PAUSE, (_S.PAUSED,), _SAME, (_E.SLOW, _E.LENGTHEN)),
    (_H.PAUSE, (_S.REFUSED, *_LASTING), _SAME, (_E.SLOW,)),
    (_H.STOP, (_S.USED,), _S.REFUSED, (_E.SLOW, _E.COUNT, *_STOP)),
    (_H.STOP, (_S.PROVING,), _S.REFUSED, (_E.SLOW_AGAIN, _E.COUNT, *_STOP)),
    (_H.STOP, (_S.PAUSED,), _S.REFUSED, (_E.SLOW, *_STOP)),
    (_H.STOP, (_S.REFUSED, *_LASTING), _SAME, (_E.SLOW,)),
    # Only somebody's word ends it, and that answers the shield's question too.
    (_H.BAR, (_S.USED,), _S.BARRED, (_E.SLOW, _E.SETTLE, _E.COUNT, *_STOP)),
    (_H.BAR, (_S.PROVING,), _S.BARRED, (_E.SLOW_AGAIN, _E.SETTLE, _E.COUNT, *_STOP)),
    # Graver than what it rests for: it takes its place.
    (_H.BAR, (_S.PAUSED, _S.REFUSED, _S.DOUBTED), _S.BARRED, (_E.SLOW, _E.SETTLE, *_STOP)),
    (_H.BAR, (_S.BARRED,), _SAME, (_E.SLOW,)),
    (_H.DOUBT, (_S.USED,), _S.DOUBTED, (_E.SLOW, _E.COUNT, *_DOUBT)),
    (_H.DOUBT, (_S.PROVING,), _S.DOUBTED, (_E.SLOW_AGAIN, _E.COUNT, *_DOUBT)),
    (_H.DOUBT, (_S.PAUSED, _S.REFUSED), _S.DOUBTED, (_E.SLOW, *_DOUBT)),
    (_H.DOUBT, _LASTING, _SAME, (_E.SLOW,)),
    # The history comes first: nothing may be sent without it, whatever the upstream says.
    (_H.PAUSE, (_S.UNCOUNTED,), _SAME, (_E.SLOW, _E.PUT_OFF, _E.RECORD)),
    (_H.STOP, (_S.UNCOUNTED,), _SAME, (_E.SLOW, _E.PUT_OFF, _E.RECORD)),
    (_H.BAR, (_S.UNCOUNTED,), _SAME, (_E.SLOW, _E.SETTLE, _E.PUT_OFF, _E.RECORD)),
    (_H.DOUBT, (_S.UNCOUNTED,), _SAME, (_E.SLOW, _E.PUT_OFF, _E.RECORD)),
    (_H.PROOF, (_S.USED,), _SAME, (_E.TRUST,)),
    (_H.PROOF, (_S.PROVING,), _S.USED, (_E.TRUST, _E.SETTLE, _E.RECORD)),
    # Of a transaction that was in flight when the rest began.
    (_H.PROOF, (_S.PAUSED,), _SAME, (_E.TRUST, _E.SETTLE, _E.RECORD)),
    (_H.PROOF, tuple(STOPPED), _SAME, (_E.TRUST, _E.RECORD)),
    (_H.OVER, (_S.USED, _S.PROVING), _SAME, ()),
    (_H.OVER, (_S.PAUSED, _S.REFUSED, _S.DOUBTED), _S.PROVING, _USE),
    (_H.OVER, (_S.BARRED,), _SAME, (_E.LOOK_LATER, _E.RECORD)),
    # It is read anew now, and SOUND or FAULT says what that came to.
    (_H.OVER, (_S.UNCOUNTED,), _SAME, ()),
    (_H.RESUME, (_S.USED,), _SAME, ()),
    (_H.RESUME, (_S.PROVING,), _SAME, (_E.SETTLE, _E.RECORD)),
    (_H.RESUME, tuple(RESTING), _S.PROVING, (_E.SETTLE, *_USE)),
    (_H.FAULT, (_S.USED, _S.PROVING), _S.UNCOUNTED, (_E.COUNT, _E.REST, _E.RECORD, _E.TELL_STOPPED)),
    # Nothing is sent meanwhile, and before anything is, the history is read anew.
    (_H.FAULT, (_S.PAUSED, _S.REFUSED, *_LASTING), _SAME, ()),
    # Kept, or a restart would take its time since the first look for an age of messages.
    (_H.FAULT, (_S.UNCOUNTED,), _SAME, (_E.LOOK_LATER, _E.RECORD)),
    (_H.SOUND, (_S.UNCOUNTED,), _S.PROVING, (*_USE, _E.HEAR)),
    (_H.SOUND, (_S.USED, _S.PROVING, _S.PAUSED, _S.REFUSED, *_LASTING), _SAME, ()),
    (_H.RESTART, (_S.USED,), _SAME, ()),
    # Whoever starts us may have mended the password, and a start reads the history anew.
    (_H.RESTART, (_S.PROVING, _S.REFUSED, _S.UNCOUNTED), _S.PROVING, (_E.SLOW_AGAIN,)),
    # Else each restart would knock at once at an upstream that extends its block for it; or the shield
    # would let as many more bounce as it allows in a row.
    (_H.RESTART, (_S.PAUSED,), _SAME, (*_GO_ON, _E.TELL_PAUSED)),
    (_H.RESTART, _LASTING, _SAME, (*_GO_ON, _E.TELL_STOPPED)),
    (_H.LATE_RESTART, (_S.USED,), _SAME, ()),
    (
        _H.LATE_RESTART,
        (_S.PROVING, _S.PAUSED, _S.REFUSED, _S.DOUBTED, _S.UNCOUNTED),
        _S.PROVING,
        (_E.SLOW_AGAIN,),
    ),
    (_H.LATE_RESTART, (_S.BARRED,), _SAME, (*_GO_ON, _E.TELL_STOPPED)),
)


def _cells() -> Iterator[tuple[tuple[Health, Happening], Cell]]:
    for happening, states, after, effects in _ROWS:
        for health in states:
            yield (health, happening), Cell(after or health, effects)


TABLE: Mapping[tuple[Health, Happening], Cell] = dict(_cells())


def refusal(answer: Answer) -> Happening:
    """Return the happening that a refusal about us, or the shield's, is to its upstream."""
    if answer.verdict is not Verdict.STOP:
        return Happening.PAUSE
    if answer.ruling is not None and not answer.ruling.may_probe:
        return Happening.BAR
    return Happening.DOUBT if answer.is_doubted else Happening.STOP


def goes_on(health: Health) -> bool:
    """Return whether the state survives a restart, as long as its time is not over."""
    return health in RESTING and TABLE[health, Happening.RESTART].health is health
