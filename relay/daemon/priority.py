"""Who goes first where the processors are busy: those whose clients wait, before the sender.

Mail that is sent a little later is late by that much; what is taken slowly keeps a client
and its connection waiting.  Where taking is the work of other processes, the sender gives
way to them, and has all that they leave; against one that is always busy, a tenth of its
processor.  So does a listener that is in the sender's own process.
"""

import contextlib
import os

STEPS = 10
"""Of niceness (nice(2)): each is a share of a processor smaller by a fifth, against who asks for it too."""
_LEAST_PRIORITY = 19


def give_way() -> None:
    """Have this thread, and the threads and programs that it starts, give way to others.

    For good: only the superuser may take it back.  Where it is not permitted, nothing changes.
    """
    with contextlib.suppress(OSError):
        # Of a thread, though POSIX says process (setpriority(2), "C library/kernel differences").
        now = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, min(now + STEPS, _LEAST_PRIORITY))
