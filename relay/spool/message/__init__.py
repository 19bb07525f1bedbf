"""A message as every engine keeps it.

message_file    its bytes: the format of a message file, whole in a file or in a record of the log
reading         messages in the store: read, checked, streamed
draft           messages that still arrive: in memory, and in files that their writers keep locked
notes           the lines that say why recipients failed
"""
