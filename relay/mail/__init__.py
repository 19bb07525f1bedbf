"""What a message is: address, envelope, header, rewriting, report (DSN), how times are written.  Pure."""
