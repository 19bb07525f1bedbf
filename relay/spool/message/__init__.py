"""A message as every engine keeps it.

message_file    its bytes: the format of a message file, whole in a file or in a record of the log
files           message files on the disk: read, streamed, listed
arriving        drafts: in memory, and in files that their writers keep locked
notes           the lines that say why recipients failed, or were deferred
recent          what is in memory of messages that wait
"""
