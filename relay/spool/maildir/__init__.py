"""The maildir engine, the default: one file for each message; the folder is the message's state.

`layout` has the table of states.  `intake` is the listener's side; `engine`, with `marks`, is the owner's.
"""
