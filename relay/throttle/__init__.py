"""Limits: at most N of a unit in any window T, over a durable history.  The interface is `throttle`."""
