"""May it go?  Exact windows over a history that survives everything.

window    one limit: how much of it is occupied, and when room opens (pure)
slots     all that is known of an account's past, and the limits that judge it
record    the bytes of a history file (pure)
history   the file: locked, shared, durable before anything is sent
throttle  the room's door: reserve, settle, replan
"""
