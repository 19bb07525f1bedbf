"""The maildir engine, the default: one file a message, the folder is its state.

`layout` has the table of states and what a start does with each.  A message's way: `intake` (the listener),
`engine` (the owner of the queue) with `marks`.
"""
