"""The states of an account, and the table of what changes them.  Pure.

A refusal that is about us pauses or stops the account, not the message.  When that is over, one
transaction goes first and has to prove that the upstream is well (PROVING): releasing the whole backlog
at the end of a pause is how accounts get blocked for good.

`relay.verdicts.account.step` goes by `TABLE`; docs/dev/decisions.md prints it.
"""

import enum
from collections.abc import Mapping


class Health(enum.StrEnum):
    USED = "used"
    """Mail goes, by connections and limits."""
    PROVING = "proving"
    """One transaction at a time, until one has gone well."""
    PAUSED = "paused"
    """The upstream refused us; used again at an instant."""
    REFUSED = "refused"
    """It refused the account; one transaction looks into it at an instant, unless somebody acts before."""
    STOPPED = "stopped"
    """The shield tripped, or each attempt makes it worse: until somebody acts, over a restart too."""


RESTING = frozenset({Health.PAUSED, Health.REFUSED, Health.STOPPED})
"""Nothing is sent."""
ENDLESS = frozenset({Health.REFUSED, Health.STOPPED})
"""Somebody has to act, or a look has to find it well."""


class Happening(enum.StrEnum):
    PAUSE = "a refusal that pauses"
    REFUSE = "a refusal of the account"
    STOP = "the shield trips, or a refusal of the account that allows no probes"
    PROOF = "something went well"
    OVER = "its time is over"
    RESUME = "`relay resume`"
    EDIT = "an edit that may mend it"
    """Of the account or of its verdicts, or another password."""
    KEEP = "the operator pauses it"
    LAPSE = "the time of the operator's pause is over"
    FAULT = "the history fails"
    SOUND = "the history is sound again"
    RESTART = "a restart"


_S = Health
_CHANGES = {
    Happening.PAUSE: {_S.USED: _S.PAUSED, _S.PROVING: _S.PAUSED},
    Happening.REFUSE: {_S.USED: _S.REFUSED, _S.PROVING: _S.REFUSED, _S.PAUSED: _S.REFUSED},
    Happening.STOP: dict.fromkeys(_S, _S.STOPPED),
    # Of a resting one it is of a transaction that was in flight when the rest began.
    Happening.PROOF: {_S.PROVING: _S.USED},
    Happening.OVER: dict.fromkeys(RESTING, _S.PROVING),
    Happening.RESUME: dict.fromkeys(RESTING, _S.PROVING),
    Happening.EDIT: dict.fromkeys(RESTING, _S.PROVING),
    # Why the operator paused it nobody told us, nor what was sent while the history failed.
    Happening.LAPSE: {_S.USED: _S.PROVING},
    Happening.SOUND: {_S.USED: _S.PROVING},
    # Whoever starts us may have mended the password.  The others go on: else each restart would knock at once
    # at an upstream that extends its block for it, or the shield would let more bounce.
    Happening.RESTART: {_S.REFUSED: _S.PROVING},
}
TABLE: Mapping[tuple[Health, Happening], Health] = {
    (health, happening): _CHANGES.get(happening, {}).get(health, health)
    for health in Health
    for happening in Happening
}
