"""A search for what a hostile upstream, with kills, makes a relay do that it promised not to do.

words     what upstreams say, and to whom: wordings, echoes, addresses, letters, all drawn
ledger    what the upstream saw, said and took, with the cause of each reply
upstream  the upstream: a server on loopback whose manners are drawn from a seed
client    the client that hands letters over and remembers what got 250
oracle    the promises, asked of the ledger, the client, the queue and the log
run       one relay between the two, killed and started again; and `python -m`, to repeat a run
search    many runs beside each other, each worker a program of its own

Nothing of relay/ decides here: the upstream and the oracle are written from RFC 5321 and the promises.
"""
