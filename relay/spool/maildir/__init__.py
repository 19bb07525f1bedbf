"""The maildir engine, the default: one file a message, the folder is its state.

`layout` has the table of states and what a restart does with each, `message_file` the bytes of a
message.  A message's way: `intake` (the listener), `into_queue`, `engine` (the sender).
`recovery` is every start; `ledger_file` the account on disk; `crash_remains` tells our own torn files
from others'; `inspection` is fsck.
"""
