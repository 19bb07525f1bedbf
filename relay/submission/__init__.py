"""Mail that a program of this host hands over without SMTP of its own: by sendmail(1).

command_line   the options of sendmail(1).  Pure
composing      a text becomes an envelope and content: its addresses, what its header lacks.  Pure
own_session    a session of the listener within this process, where the caller may write the spool
maildir_drain  the messages of a maildir, each given and then removed
handover       who takes the mail, and one message given to it: the spool, or the listener on loopback
"""
