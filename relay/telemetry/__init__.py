"""Events, metrics, and what became of messages lately: every room tells, none asks.

Stands below the rooms that send, so that they can tell; what looks at them is `relay.status`.
"""
