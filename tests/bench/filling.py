"""Mail for the benchmarks, accepted as a listener accepts it."""

from collections.abc import Iterable

from relay.mail.envelope import Envelope
from relay.spool.interface import Intake


def accept(intake: Intake, mail: Iterable[tuple[bytes, Envelope]]) -> None:
    """Accept messages together; each is a content and its envelope."""
    drafts = []
    for content, envelope in mail:
        draft = intake.draft()
        draft.append(content)
        drafts.append((draft, envelope))
    assert not any(intake.accept(drafts))


def slices(count: int, at_once: int) -> Iterable[range]:
    """Yield so many numbers from 0, some at a time."""
    return (range(start, min(count, start + at_once)) for start in range(0, count, at_once))
