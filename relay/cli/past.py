"""What the verbs read of what was relayed, from its database: the relay takes no part in that."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relay.cli.locate import Where, found_policy
from relay.cli.options import NotPermitted, TryLater
from relay.mail.formats import rfc3339_or_none
from relay.status.filters import USAGE_KEYS
from relay.status.snapshot import Snapshot
from relay.telemetry.outcomes import oldest_ns, past_outcomes, usage


@contextmanager
def opened_past(spool: Path) -> Iterator[sqlite3.Connection]:
    """Open what is kept.  Raises NotPermitted, TryLater, also for what is read meanwhile."""
    try:
        with past_outcomes(str(spool)) as past:
            yield past
    except PermissionError as error:
        raise NotPermitted(f"{error}; run this as the user that the relay runs as") from error
    except (OSError, sqlite3.Error) as error:
        raise TryLater(f"what ended cannot be read: {error}") from error


def usage_json(where: Where, snapshot: Snapshot, by: str) -> dict[str, Any]:
    """Return what was relayed within the length of each limit; keys may be added, never renamed."""
    with opened_past(found_policy(where).spool) as past:
        return {
            "usage_since": rfc3339_or_none(oldest_ns(past)),
            "usage": [
                {"upstream": upstream.name, "limit": limit.label, "by": by, **each._asdict()}
                for upstream in snapshot.upstreams
                for limit in upstream.limits
                for each in usage(past, USAGE_KEYS[by], upstream.name, snapshot.at_ns - limit.period_ns)
            ],
        }
