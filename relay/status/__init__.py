"""What can be seen of a relay: snapshot, forecast, what an edit would do, page, /status.json, the scrape."""

MOST_CONNECTIONS = 64
"""To the status port: a handful of scrapers and browsers; each costs a descriptor."""
