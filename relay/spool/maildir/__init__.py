"""The maildir engine, the default: one file a message, the folder is its state.

The table of states and what a restart does with each is in `layout`; the bytes of a message file
in `message_file`.  `drafts` is the listener's side, `engine` the sender's, `recovery` every start.
"""
