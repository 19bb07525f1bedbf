"""The queue in PostgreSQL, for relays on several hosts: `intake` for listeners, `engine` for its owners."""

IN_A_DATABASE = b"relay spool 1 postgresql\n"
"""Content of the file `format` in the folder that each host has beside the database."""
