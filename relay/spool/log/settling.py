"""Turns a batch of settlements into the records of one group, by what the index knows.  No I/O of its own.

A group is valid as a whole or not at all.  So no crash leaves a report without the mark that its recipients
are told, or that mark without the report.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relay.mail.envelope import Envelope, QueueId
from relay.spool.interface import Absent, Corrupt, Settlement, Status
from relay.spool.log.facts import ENDED, Facts, as_json, facts_record
from relay.spool.log.index import UNKNOWN_CRC, Index, recipients_crc
from relay.spool.log.record import Record

_NOTHING = Facts()


class LogSettling:
    def __init__(
        self, index: Index, record_of: Callable[[QueueId, Envelope, Sequence[bytes]], Record]
    ) -> None:
        """`record_of` returns the record of a new message, and may write its long content."""
        self._index = index
        self._record_of = record_of
        self._marks: dict[QueueId, dict[int, Status]] = {}
        self.records: list[Record] = []
        self.relayed: list[Record] = []
        """Only the marks of relayed recipients, for when `records` find no room."""

    def add(self, each: Settlement) -> None:
        """Raise Absent, Corrupt, OSError; OSError still adds the marks of relayed recipients."""
        own = each.queue_id
        if own not in self._index.places:
            asks = each.report or each.notes or each.told or each.is_warned or each.is_held is not None
            # An end may be repeated after a crash, and a hint may get lost.
            if (each.marks or asks) and not each.ends:
                raise Absent(own)
            return
        facts = self._index.facts.get(own, _NOTHING)
        marks = self._new_marks(each, facts)
        relayed = {index: status for index, status in marks.items() if status.is_relayed}
        relayed_alone = [facts_record(own, as_json(relayed, ()))] if relayed else []
        self.relayed += relayed_alone
        try:
            report = self._report(each, facts)
        except OSError:
            self.records += relayed_alone
            raise
        known = self._marks.setdefault(own, {})
        known.update(marks)
        if each.ends and len(facts.statuses.keys() | known) < len(each.envelope.recipients):
            raise AssertionError(f"{own} cannot be removed: it has recipients left to do")
        if new := _news(each, facts, marks):
            self.records.append(facts_record(own, new))
        self.records += report
        self.records += [Record(ENDED, own)] if each.ends else []

    def _new_marks(self, each: Settlement, facts: Facts) -> dict[int, Status]:
        if not (each.marks or each.told or each.ends):
            return {}
        if self._index.places[each.queue_id].recipients_crc not in (
            UNKNOWN_CRC,
            recipients_crc(each.envelope.recipients),
        ):
            raise Corrupt("its recipients differ from those of the settlement")
        before = {**facts.statuses, **self._marks.get(each.queue_id, {})}
        for index, status in each.marks.items():
            if before.get(index, status) is not status:
                was = before[index].name
                raise Corrupt(f"recipient {index} is already {was} and cannot become {status.name}")
        return {index: status for index, status in each.marks.items() if index not in before}

    def _report(self, each: Settlement, facts: Facts) -> list[Record]:
        report = each.report
        if report is None or report.queue_id in self._index.places:
            return []
        # A repeated settlement: the report may have been relayed and removed already.
        if (each.told and facts.told.issuperset(each.told)) or (each.is_warned and facts.is_warned):
            return []
        return [self._record_of(report.queue_id, report.envelope, [report.content])]


def _news(each: Settlement, facts: Facts, marks: Mapping[int, Status]) -> dict[str, Any]:
    told = [index for index in each.told if index not in facts.told]
    new = as_json(marks, each.notes, told=told, warned=each.is_warned and not facts.is_warned)
    return new if each.is_held in (None, facts.is_held) else new | {"held": each.is_held}
