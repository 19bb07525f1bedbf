"""The status of a relay: snapshot, forecast, plan of a policy edit, status page, /status.json, metrics."""
