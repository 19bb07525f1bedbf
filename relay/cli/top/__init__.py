"""`relay top`: `command` has its options, `rows` the lines of what the relay said, `screen` is the terminal.

Only `screen` loads the library of terminals, and only this command waits for it.
"""
