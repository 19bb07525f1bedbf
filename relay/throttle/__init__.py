"""May it go?  Exact windows over a history that survives everything.

A request goes down this list, and a grant comes up durable:

throttle        the door: learn, decide, commit, apply; and what can be asked of an account
admission       what of a message may go now, what it waits for otherwise, and its keys (pure)
book            all that is known of an account's slots, and the limits that judge them (pure)
limit_state     the rule and its proof: how much of N is occupied, of each key, and when room opens (pure)
compaction      old slots in fewer records, so that memory and the history stay bounded (pure)

history         the seam: transactions that exclude all other writers
file_history    the history in a file: locked, shared, durable before anything is sent
history_format  its bytes, and those of its lock (pure)
history_check   what `relay fsck` and those who ask a relay that is down read, without the lock

audit           the most that any window can have held, counted another way (pure)
events          what a history tells: slots that begin and end (pure)
limit           what a limit is to all of these (pure)
"""
