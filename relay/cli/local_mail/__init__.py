"""Commands for the mail of this host's own programs, for hosts without another mail server.

sendmail   sendmail(1), straight into the spool or over loopback
mailq      mailq(1) and newaliases(1)
asking     what sendmail(1) asks about the queue
drain      a maildir of outgoing messages, one after the other
"""
