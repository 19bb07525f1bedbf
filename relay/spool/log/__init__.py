"""The log engine, for floods and slow disks: append-only segments, a stream for each writer, one checkpoint.

`layout` names the files, `record` encodes a segment, `facts` encodes what became of a message.  Listeners
write with `intake` and `writer`.  The owner of the queue reads with `streams` into `index`, and writes with
`settling`, `journal` and `checkpoint`; `engine` joins these.  `content` stores long messages in own files.
"""
