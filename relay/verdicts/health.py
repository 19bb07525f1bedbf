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

from relay.verdicts.health_states import Health as Health  # noqa: PLC0414 - part of the door
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

USED = frozenset({Health.UNTRIED, Health.USED})
"""Mail goes, by connections and limits."""
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
    ANSWER = "a transaction that proves nothing"
    OVER = "its time is over"
    RESUME = "`relay resume`"
    EDIT = "an edit that may mend it"
    """Of the account or of its verdicts, or another password."""
    FAULT = "the history fails"
    SOUND = "the history is sound"
    RESTART = "a restart"
    LATE_RESTART = "a restart after its time"
    KEEP_FOR = "the operator pauses it for a time"
    KEEP = "the operator pauses it until resume"
    LAPSE = "the time of the operator's pause is over"
    LEAVE = "the operator's pause has ended"


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
    ANEW = "the doubling of the back-off begins anew"
    END = "end the rest, and count that"
    PUT_OFF = "hear it when the history is sound, or after a restart"
    HEAR = "hear the gravest that was put off, whose time may be over by now"
    RECORD = "keep it on disk"
    TELL_PAUSED = "tell `upstream_paused`"
    TELL_STOPPED = "tell `upstream_stopped`"
    TELL_PROVING = "tell `upstream_proving`"
    TELL_RESUMED = "tell `upstream_resumed`"
    KEEP_BACK = "send nothing by the operator's word"
    FOLLOW = "hold what came in since, where the pause says so, and no other"
    LET = "end the operator's pause"
    PROVE = "hear that the operator's pause has ended, in the table of the states"
    TELL_KEPT_BACK = "tell `operator_paused`"
    TELL_LET = "tell `operator_pause_ended`"
    LEARN = "tell what our windows held, if it is the first in a row"


class Cell(NamedTuple):
    health: Health
    effects: tuple[Effect, ...] = ()
    """In the order in which they are carried out."""


_S, _H, _E = Health, Happening, Effect
_SAME = None
_PAUSE = (_E.COUNT, _E.MORE, _E.REST, _E.RECORD, _E.TELL_PAUSED, _E.LEARN)
_STOP = (_E.MORE, _E.REST, _E.RECORD, _E.TELL_STOPPED)
_DOUBT = (_E.DOUBT, *_STOP)
_PROVE = (_E.END, _E.RECORD, _E.TELL_PROVING)
_GO_ON = (_E.SLOW_AGAIN, _E.COUNT, _E.REST, _E.RECORD)
_LASTING = (_S.BARRED, _S.DOUBTED)

_ROWS: tuple[tuple[Happening, tuple[Health, ...], Health | None, tuple[Effect, ...]], ...] = (
    (_H.PAUSE, tuple(USED), _S.PAUSED, (_E.SLOW, *_PAUSE)),
    (_H.PAUSE, (_S.PROVING,), _S.PAUSED, (_E.SLOW_AGAIN, *_PAUSE)),
    (_H.PAUSE, (_S.PAUSED,), _SAME, (_E.SLOW, _E.LENGTHEN)),
    (_H.PAUSE, (_S.REFUSED, *_LASTING), _SAME, (_E.SLOW,)),
    (_H.STOP, tuple(USED), _S.REFUSED, (_E.SLOW, _E.COUNT, *_STOP)),
    (_H.STOP, (_S.PROVING,), _S.REFUSED, (_E.SLOW_AGAIN, _E.COUNT, *_STOP)),
    (_H.STOP, (_S.PAUSED,), _S.REFUSED, (_E.SLOW, *_STOP)),
    (_H.STOP, (_S.REFUSED, *_LASTING), _SAME, (_E.SLOW,)),
    # Only somebody's word ends it, and that answers the shield's question too.
    (_H.BAR, tuple(USED), _S.BARRED, (_E.SLOW, _E.SETTLE, _E.COUNT, *_STOP)),
    (_H.BAR, (_S.PROVING,), _S.BARRED, (_E.SLOW_AGAIN, _E.SETTLE, _E.COUNT, *_STOP)),
    # Graver than what it rests for: it takes its place.
    (_H.BAR, (_S.PAUSED, _S.REFUSED, _S.DOUBTED), _S.BARRED, (_E.SLOW, _E.SETTLE, *_STOP)),
    (_H.BAR, (_S.BARRED,), _SAME, (_E.SLOW,)),
    (_H.DOUBT, tuple(USED), _S.DOUBTED, (_E.SLOW, _E.COUNT, *_DOUBT)),
    (_H.DOUBT, (_S.PROVING,), _S.DOUBTED, (_E.SLOW_AGAIN, _E.COUNT, *_DOUBT)),
    (_H.DOUBT, (_S.PAUSED, _S.REFUSED), _S.DOUBTED, (_E.SLOW, *_DOUBT)),
    (_H.DOUBT, _LASTING, _SAME, (_E.SLOW,)),
    # The history comes first: nothing may be sent without it, whatever the upstream says.
    (_H.PAUSE, (_S.UNCOUNTED,), _SAME, (_E.SLOW, _E.PUT_OFF, _E.RECORD)),
    (_H.STOP, (_S.UNCOUNTED,), _SAME, (_E.SLOW, _E.PUT_OFF, _E.RECORD)),
    (_H.BAR, (_S.UNCOUNTED,), _SAME, (_E.SLOW, _E.SETTLE, _E.PUT_OFF, _E.RECORD)),
    (_H.DOUBT, (_S.UNCOUNTED,), _SAME, (_E.SLOW, _E.PUT_OFF, _E.RECORD)),
    (_H.PROOF, tuple(USED), _S.USED, (_E.TRUST,)),
    # Told only now: what a probe finds refused again was never resumed.
    (_H.PROOF, (_S.PROVING,), _S.USED, (_E.TRUST, _E.SETTLE, _E.RECORD, _E.TELL_RESUMED)),
    # Of a transaction that was in flight when the rest began.
    (_H.PROOF, (_S.PAUSED,), _SAME, (_E.TRUST, _E.SETTLE, _E.RECORD)),
    (_H.PROOF, tuple(STOPPED), _SAME, (_E.TRUST, _E.RECORD)),
    (_H.ANSWER, tuple(USED), _S.USED, ()),
    (_H.ANSWER, (_S.PROVING, *RESTING), _SAME, ()),
    (_H.OVER, (*USED, _S.PROVING), _SAME, ()),
    (_H.OVER, (_S.PAUSED, _S.REFUSED, _S.DOUBTED), _S.PROVING, _PROVE),
    (_H.OVER, (_S.BARRED,), _SAME, (_E.LOOK_LATER, _E.RECORD)),
    # It is read anew now, and SOUND or FAULT says what that came to.
    (_H.OVER, (_S.UNCOUNTED,), _SAME, ()),
    *(
        row
        for mended in (_H.RESUME, _H.EDIT)
        for row in (
            (mended, tuple(USED), _SAME, ()),
            (mended, (_S.PROVING,), _SAME, (_E.SETTLE, _E.ANEW, _E.RECORD)),
            (mended, tuple(RESTING), _S.PROVING, (_E.SETTLE, _E.ANEW, *_PROVE)),
        )
    ),
    (_H.FAULT, (*USED, _S.PROVING), _S.UNCOUNTED, (_E.COUNT, _E.REST, _E.RECORD, _E.TELL_STOPPED)),
    # Nothing is sent meanwhile, and before anything is, the history is read anew.
    (_H.FAULT, (_S.PAUSED, _S.REFUSED, *_LASTING), _SAME, ()),
    # Kept, or a restart would take its time since the first look for an age of messages.
    (_H.FAULT, (_S.UNCOUNTED,), _SAME, (_E.LOOK_LATER, _E.RECORD)),
    (_H.SOUND, (_S.UNCOUNTED,), _S.PROVING, (*_PROVE, _E.HEAR)),
    (_H.SOUND, (*USED, _S.PROVING, _S.PAUSED, _S.REFUSED, *_LASTING), _SAME, ()),
    # What another run saw of it is no answer of today.
    (_H.RESTART, tuple(USED), _S.UNTRIED, ()),
    # Whoever starts us may have mended the password, and a start reads the history anew.
    (_H.RESTART, (_S.PROVING, _S.REFUSED, _S.UNCOUNTED), _S.PROVING, (_E.SLOW_AGAIN,)),
    # Else each restart would knock at once at an upstream that extends its block for it; or the shield
    # would let as many more bounce as it allows in a row.
    (_H.RESTART, (_S.PAUSED,), _SAME, (*_GO_ON, _E.TELL_PAUSED)),
    (_H.RESTART, _LASTING, _SAME, (*_GO_ON, _E.TELL_STOPPED)),
    (_H.LATE_RESTART, tuple(USED), _S.UNTRIED, ()),
    (
        _H.LATE_RESTART,
        (_S.PROVING, _S.PAUSED, _S.REFUSED, _S.DOUBTED, _S.UNCOUNTED),
        _S.PROVING,
        (_E.SLOW_AGAIN,),
    ),
    (_H.LATE_RESTART, (_S.BARRED,), _SAME, (*_GO_ON, _E.TELL_STOPPED)),
    # An operator's pause stands beside the state (`relay.verdicts.operator_pause`).
    *((happening, tuple(Health), _SAME, ()) for happening in (_H.KEEP_FOR, _H.KEEP, _H.LAPSE)),
    # Why the operator paused it nobody told us: one message looks first.
    (_H.LEAVE, tuple(USED), _S.PROVING, (_E.RECORD, _E.TELL_PROVING)),
    (_H.LEAVE, (_S.PROVING, *RESTING), _SAME, ()),
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
