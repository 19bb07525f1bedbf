"""May it go?  Exact windows over a history that survives everything.

A request goes down this list, and a grant comes up durable:

throttle        the door: reserve, settle, replan; and what can be asked of an account
admission       what of a message may go now, what it waits for otherwise, and its keys (pure)
slots           memory: what is in flight, what has ended, and the limits that judge it
gauge           one limit: a window, or one for each key (pure)
window          the rule and its proof: how much of N is occupied, when room opens (pure)
wall            what the wall clock may say, and when a calendar's period is surely over (pure)
bounds          how much of the past is kept as it was, and when a file is written anew
compaction      old ends told more briefly, so that memory and the file stay bounded (pure)

history         the file: locked, shared, durable before anything is sent
history_states  what may be found of it, and what becomes of that: one table (pure)
history_format  its bytes, and those of its lock (pure)
history_check   what `relay fsck` and `relay audit` read, without the lock

peaks           the most that any window can have held, counted another way (pure)
limit           what a limit is to all of these (pure)
limit_hints     what a refusal for too much mail teaches (pure)
"""
