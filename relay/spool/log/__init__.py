"""The engine log: mail is added to segments, and nothing is written anywhere else to accept or to end it.

`layout` has the files, `record` the bytes.  A message's way: `intake` (the listener) with `stream_writer`;
`streams` with `stream_reader` (from listeners to the sender); `engine` (the sender), whose calls go through
`journal` into its own stream.  `index` is what is in memory, `segments` what of the disk is still needed,
`facts` what became of a message, `message` its record or own file; `reading` puts these together, and
`damaged` ends what is none.  `recovery` is every start, which `summary` makes quick; `cleaning` makes room.
"""
