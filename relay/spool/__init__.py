"""On disk: every accepted message, in a form that survives loss of power at any instant.

`interface` is what any engine promises, and the values it speaks in; `maildir/` is the default
engine.  `durable` is the port of the disk, the only place that syncs, links, renames and locks;
`replacing` puts one file in the place of another; `batched_sync` lets the files of one batch wait for
the disk together.
"""
