"""What an edit of the policy cannot change while the relay runs.  Pure."""

from relay.policy.model import Policy

RESTART_KEYS = ("spool", "listen", "http", "hostname", "practice")
"""Taken up at the start only; every other key is live."""


def changes_needing_restart(old: Policy, new: Policy) -> list[str]:
    """Return the keys that differ and count only after a restart."""
    return [key for key in RESTART_KEYS if getattr(old, key) != getattr(new, key)]
