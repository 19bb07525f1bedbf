"""What a crash run was given: its seed, and about how many seconds it may take."""

import math
import os
import random
from collections.abc import Sequence
from typing import TypeVar

SEED = int(os.environ.get("RELAY_CRASH_SEED", "0"))
BUDGET_S = float(os.environ.get("RELAY_CRASH_BUDGET", "1"))

Of = TypeVar("Of")


def part_of(members: Sequence[Of], whole_budget_s: float) -> list[Of]:
    """Return all members where the budget is so large, else its part of them, drawn from the seed."""
    count = math.ceil(len(members) * min(1, BUDGET_S / whole_budget_s))
    return random.Random(SEED).sample(members, count)
