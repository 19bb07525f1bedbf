"""May it go?  Exact windows over a history that survives everything; `throttle` is the door."""
