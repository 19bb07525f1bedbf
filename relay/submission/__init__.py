"""Mail that programs of this host hand over without SMTP of their own: by sendmail(1), or in a maildir.

command_line   parses the options of sendmail(1).  Pure
composing      makes an envelope and content of a text, and completes its header.  Pure
own_session    a session of the listener within this process, for a caller who may write the spool
maildir_drain  hands over each message of a maildir, then removes it
handover       gives messages to such a session, or to the listener on loopback
"""
