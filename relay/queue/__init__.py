"""The queue in memory: which message goes next, by which route, and what the others wait for.  Pure."""
