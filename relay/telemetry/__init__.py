"""Events, metrics and recent outcomes of messages.  Every room reports here, and no room decides by it.

Stands below the rooms that send, so that they can report.  `relay.status`, hooks and `relay find` read it.
"""
