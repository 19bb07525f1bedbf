"""The maildir engine, the default: one file a message, the folder is its state.

`layout` has the table of states and what a restart does with each.  A message's way: `intake` (the listener),
`into_queue`, `engine` (the sender) with `status_bytes` and `notes_file`; or out of another spool, `adoption`.
`recovery` is every start; `ledger_file` the account on disk; `crash_remains` tells our own torn files from
others'; `inspection` is fsck.
"""
