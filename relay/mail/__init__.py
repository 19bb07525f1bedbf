"""What a message is: address, envelope, header, report (DSN), how times and periods are written.  Pure."""
