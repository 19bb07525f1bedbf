"""What can be seen of a relay: snapshot, forecast, what an edit would do, page, /status.json, the scrape."""
