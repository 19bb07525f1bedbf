"""The status of a relay: snapshot, forecast, plan of a policy edit, status page, /status.json, metrics."""

MOST_CONNECTIONS = 64
"""Connections to the status port.  A few scrapers and browsers need it; each costs a descriptor."""
