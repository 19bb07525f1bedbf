"""An operator's pause of an upstream (`relay pause`), and the table of what changes it.  Pure.

It stands beside the state of the upstream (`relay.verdicts.health`), not among its states: what the
upstream says while an operator's pause lasts still changes that state, and what it came to counts when
the pause is over.  Nothing is sent while either forbids it.

`WORDS` says for each word of the operator and each happening what the word is then, and what is done;
`relay.sender.upstream_health` carries that out, ahead of what the state's own table says.
docs/states.md prints both.

With `--new` a pause also holds what comes in while it lasts.  That is written nowhere but in the pause:
a message that came in since `new_since_ns` is held, and goes on when the pause is over, so no crash can
leave one behind that nobody releases (`relay.queue.queued.NewMailHold`).
"""

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from relay.mail.formats import utc
from relay.mail.text import clean
from relay.verdicts.health import Effect, Happening

FOREVER_NS = 1 << 62
"""The end of a pause that has not ended."""
LONGEST_BY = 64
"""Characters of the name of who paused."""


class Word(enum.StrEnum):
    FREE = "free"
    """No pause of the operator's."""
    TIMED = "paused for a time"
    LASTING = "paused until resume"


class WordCell(NamedTuple):
    word: Word
    effects: tuple[Effect, ...] = ()
    """In the order in which they are carried out."""


_H, _E = Happening, Effect
_PAUSED = (Word.TIMED, Word.LASTING)
_SAME = None
_BEGIN = (_E.KEEP_BACK, _E.RECORD, _E.FOLLOW, _E.TELL_KEPT_BACK)
_END = (_E.LET, _E.RECORD, _E.FOLLOW, _E.TELL_LET, _E.PROVE)
_GO_ON = (_E.FOLLOW, _E.TELL_KEPT_BACK)

_ROWS: tuple[tuple[Happening, tuple[Word, ...], Word | None, tuple[Effect, ...]], ...] = (
    # A second word takes the place of the first.
    (_H.KEEP_FOR, tuple(Word), Word.TIMED, _BEGIN),
    (_H.KEEP, tuple(Word), Word.LASTING, _BEGIN),
    (_H.LAPSE, (Word.TIMED,), Word.FREE, _END),
    (_H.LAPSE, (Word.FREE, Word.LASTING), _SAME, ()),
    (_H.RESUME, (Word.FREE,), _SAME, ()),
    (_H.RESUME, _PAUSED, Word.FREE, _END),
    (_H.RESTART, (Word.FREE,), _SAME, ()),
    (_H.RESTART, _PAUSED, _SAME, _GO_ON),
    (_H.LATE_RESTART, (Word.FREE,), _SAME, ()),
    (_H.LATE_RESTART, (Word.TIMED,), Word.FREE, _END),
    (_H.LATE_RESTART, (Word.LASTING,), _SAME, _GO_ON),
    # What the upstream says, what becomes of the history and what an edit mends does not answer the
    # operator's reason to pause.
    *(
        (happening, tuple(Word), _SAME, ())
        for happening in (
            _H.PAUSE,
            _H.STOP,
            _H.BAR,
            _H.DOUBT,
            _H.PROOF,
            _H.ANSWER,
            _H.OVER,
            _H.EDIT,
            _H.FAULT,
            _H.SOUND,
            _H.LEAVE,
        )
    ),
)


def _cells() -> Iterator[tuple[tuple[Word, Happening], WordCell]]:
    for happening, words, after, effects in _ROWS:
        for word in words:
            yield (word, happening), WordCell(after or word, effects)


WORDS: Mapping[tuple[Word, Happening], WordCell] = dict(_cells())


@dataclass(frozen=True, slots=True)
class PauseAsked:
    by: str
    length_ns: int | None = None
    """None: until `relay resume`."""
    holds_new: bool = False
    """Hold what comes in while it lasts."""

    def begun(self, now_ns: int, wall_ns: int, before: "OperatorPause | None" = None) -> "OperatorPause":
        """Return it as of now; what the pause `before` it held stays held where this one holds too."""
        until_ns = FOREVER_NS if self.length_ns is None else now_ns + self.length_ns
        new_since_ns = now_ns if self.holds_new else None
        if new_since_ns is not None and before is not None and before.new_since_ns is not None:
            new_since_ns = before.new_since_ns
        return OperatorPause(until_ns, clean(self.by)[:LONGEST_BY], wall_ns, new_since_ns)


@dataclass(frozen=True, slots=True)
class OperatorPause:
    until_ns: int
    """Boottime; FOREVER_NS where only `relay resume` ends it."""
    by: str
    since_at_ns: int
    """Wall clock, to show."""
    new_since_ns: int | None = None
    """Boottime: what came in since is held.  None: it waits as all else."""

    @property
    def holds_new(self) -> bool:
        return self.new_since_ns is not None

    @property
    def word(self) -> Word:
        return Word.LASTING if self.until_ns == FOREVER_NS else Word.TIMED

    @property
    def begins(self) -> Happening:
        return Happening.KEEP if self.word is Word.LASTING else Happening.KEEP_FOR

    @property
    def who(self) -> str:
        holding = "; new mail for it is held" if self.holds_new else ""
        return f"{self.by}, since {utc(self.since_at_ns)}{holding}"

    @property
    def words(self) -> str:
        return f"by {self.who}"

    def moved(self, by_ns: int, moved: Callable[[int], int]) -> Self:
        """Return it in the time of another boot, which `by_ns` brings an end to, and `moved` an arrival."""
        is_lasting = self.word is Word.LASTING
        return replace(
            self,
            until_ns=self.until_ns if is_lasting else self.until_ns + by_ns,
            new_since_ns=None if self.new_since_ns is None else moved(self.new_since_ns),
        )
