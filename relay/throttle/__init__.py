"""May it go?  Exact windows over a history that survives everything.

window    how much of N is occupied, and when room opens (pure)
gauge     one limit: a window, or one for each key (pure)
keys      what a limit tells messages apart by (pure)
decision  what of a message may go now, and what it waits for otherwise (pure)
merging   old ends rounded up and added together (pure)
sharing   whose old ends were, by the slice (pure)
proof     what limits held at most, laid on a line and counted (pure)
slots     all that is known of an account's past, and the limits that judge it
record    the bytes of a history file (pure)
reached   how far a history was durable, in its lock: what is missing is noticed (pure)
repair    what an operator can do about one that cannot be used (pure)
history   the file: locked, shared, durable before anything is sent
throttle  the room's door: reserve, settle, replan
usage     how full a limit is, for showing (pure)
tally     how much was charged lately, for comparing with a refusal
audit     the proof of what is in the file: the most that any window held
"""
