"""What the engines share for storing one message.

message_file    the format of a message file, which is a file, or part of a record of the log
reading         reads, checks and streams stored messages
draft           a message that still arrives: in memory, and in a file that its writer locks
notes           the format of the lines that say why recipients failed
"""
