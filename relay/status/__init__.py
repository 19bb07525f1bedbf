"""What can be seen of a relay: the snapshot, the forecast, the page, /status.json and the scrape."""
