"""Would the tests notice?  `make mutants`: one sync, one order, one check left out at a time, and slips.

sites        where the spool, its threads and the throttle sync, order and check, found in their source
operators    the general mutants: a comparison, a number, a call, changed in any line
equivalents  what cannot be noticed, with the proof: equivalents.yaml
known        what the tests do without any mutant, and which of them could notice one
judging      makes each mutant in a copy of the project, and runs the tests that could notice it
plugin       the part of that in the process that runs the tests; swap puts a mutant into it
page         what became of them: figures
__main__     which mutants, in which order
"""
