"""The maildir engine, the default: one file a message, the folder is its state.

`layout` has the table of states and what a restart does with each, `message_file` the bytes of a
message.  A message's way: `intake` (the listener), `into_queue`, `engine` (the sender).
`recovery` is every start; `ledger` the account; `quarantine` and `foreign` keep others' files apart;
`inspection` is fsck.
"""
