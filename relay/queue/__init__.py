"""Which message goes next: scheduler, lanes, parking, sender pauses, settlement.  Pure."""
