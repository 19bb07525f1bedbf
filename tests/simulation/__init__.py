"""The whole relay in one process and one thread, in virtual time, on a model disk, through drawn worlds.

`python -m tests.simulation SEED COUNT` runs stories; a seed tells everything.  What stands where: `loop`
(time, threads, kills), `network` (connections in memory), `store` (a database), `relay` (the assembly),
`upstream`, `client` (the two sides that the relay talks to), `script` (what happens in a story), `worlds`
(policies and what may be drawn under each), `story` (one run), `past` (what is known of it), `oracle`,
`manners` and `liveness` (the promises), `shrink` (a failing seed, shorter).
"""
