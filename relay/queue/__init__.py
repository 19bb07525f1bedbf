"""Which message goes next, and by which route: a line for each upstream, and what waits there.  Pure."""
