"""`relay top`: what a running relay does, live in a terminal, and verbs by keys.

`looking` asks the relay, again and again; `rates` and `picture` make rows of the answers, and are pure;
`acting` says what a key would do and does it; `screen` shows it all.  `screen` alone imports the library of
terminals, and `command` imports `screen` only once it runs: no other command waits for it.
"""
