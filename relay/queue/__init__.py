"""Which message goes next, and by which route: a line for each upstream, lanes, parking.  Pure."""
