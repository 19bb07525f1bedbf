"""The whole relay in one process and one thread, in virtual time, on a model disk, through random worlds.

`python -m tests.simulation SEED COUNT` runs stories; the seed determines the whole story. The modules: `loop`
(time, threads, kills), `network` (connections in memory), `relay` (the assembly, and a database),
`upstream` and `client` (the two sides that the relay talks to), `script` (the events of a story), `worlds`
(policies, and what may be drawn under each), `story` (one run), `past` (what is known of a run), `oracle` and
`manners` (the promises).
"""
