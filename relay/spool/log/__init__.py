"""The log engine, for floods and slow disks: append-only segments, a stream for each writer, one checkpoint.

`layout` says where things are, `record` what a segment holds, `facts` what is said of a message.  A message's
way: `intake` (the listener) with `writer`; `streams`, `index` (what is queued) and `engine` (the owner of the
queue) with `settling`, `journal` and `checkpoint`.  `content` is for messages that do not fit into a record.
"""
