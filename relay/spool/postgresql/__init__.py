"""The queue in PostgreSQL, for relays on several hosts: `intake` for listeners, `engine` for its owners."""

IN_A_DATABASE = b"relay spool 1 postgresql\n"
"""What `format` says in the folder that a host has beside it."""
