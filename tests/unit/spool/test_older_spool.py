"""A spool that an earlier version wrote starts as it is: every file of it is kept here, byte for byte.

What is in it: 64 queued messages, one in each folder of cur/, and one message each that is partly
relayed and postponed, bounced with notes and not yet reported, counted out and not yet removed, held,
damaged, warned of; two accepted ones, the listener of one killed before it removed its draft; a draft;
and a message that was set aside and that somebody removed from corrupt/ since.
"""

import json
import os
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Totals
from relay.spool.maildir.inspection import Inspector
from relay.spool.maildir.layout import SPLITS
from tests.unit.spool.engine import CONTENT, ENVELOPE, note, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_kernel
from tests.unit.spool.recovering import recover

HOUR_NS = 3600 * 10**9
WRITTEN = json.loads(Path(__file__).with_name("spool_of_version_1.json").read_text())
NAMES = {what: QueueId(name) for what, name in WRITTEN["names"].items()}


@pytest.fixture
def engine(tmp_path: Path) -> MaildirEngine:
    engine = on_the_kernel(tmp_path)
    for path in engine.layout.folders():
        Path(path).mkdir(0o700)
    for name, content in WRITTEN["files"].items():
        path = Path(engine.root) / name
        path.write_bytes(content.encode("latin-1"))
        path.chmod(0o600)
        at_ns = ENVELOPE.arrival_at_ns + (HOUR_NS if path.name == NAMES["partly"] else 0)
        os.utime(path, ns=(at_ns, at_ns))
    draft = Path(engine.layout.draft(NAMES["accepted"]))
    draft.unlink()
    draft.hardlink_to(engine.layout.accepted(NAMES["accepted"]))
    return engine


def test_a_start_takes_all_of_it_as_it_is(engine: MaildirEngine) -> None:
    spool = engine.start()
    found = recover(spool)
    entries = {entry.queue_id: entry for entry in found.entries}

    assert found.audit == {
        "held": 1,
        "taken": 2,
        "resumed": 1,
        "finished": 1,
        "abandoned": 2,
        "set_aside": 0,
        "corrupt": 1,
        "removed_recipients": 3,
        "missing_recipients": 0,
        "damaged_ledger_lines": 0,
    }
    assert len(entries) == SPLITS + 6
    assert entries[NAMES["held"]].is_held
    assert entries[NAMES["warned"]].is_warned
    assert entries[NAMES["partly"]].recipients_left == 2
    assert entries[NAMES["partly"]].next_attempt_at_ns == ENVELOPE.arrival_at_ns + HOUR_NS
    assert entries[NAMES["bounced"]].recipients_left == 0
    assert spool.notes(NAMES["bounced"]) == [note(1), note(2, None, "expired")]
    assert spool.load(NAMES["accepted"]).content == CONTENT
    assert spool.load(NAMES["partly"]).envelope == ENVELOPE
    assert spool.load(NAMES["plain"]).envelope.is_null
    assert engine.names("corrupt") == [NAMES["damaged"]]
    assert engine.names("tmp") == engine.names("new") == taken(spool) == []
    assert spool.totals() == Totals(
        accepted=64 + 7 * 3 + 2 * 3, relayed=4, bounced=1, expired=1, deleted=4, queued=81
    )


def test_fsck_says_of_it_what_the_start_does(engine: MaildirEngine) -> None:
    (Path(engine.root) / "lock").write_bytes(b"")
    (Path(engine.root) / "lock").chmod(0o600)
    seen = Inspector(engine.root, RealDisk()).inspect()

    found = sorted((finding.kind, Path(finding.path).name) for finding in seen.findings)
    assert found == sorted(
        [
            ("draft", NAMES["accepted"]),
            ("draft", NAMES["draft"]),
            ("finished", NAMES["bounced"]),
            ("finished", NAMES["counted_out"]),
            ("removed", "ledger"),
            ("set_aside", NAMES["damaged"]),
        ]
    )
