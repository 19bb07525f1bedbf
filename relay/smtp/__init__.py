"""SMTP without I/O: replies, extensions, dot stuffing.  Pure."""
