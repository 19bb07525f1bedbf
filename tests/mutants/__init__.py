"""Would the tests notice?  `python -m tests.mutants`: one sync, one order, one check removed at a time.

sites       where the spool and the history sync, order and check, found in their source
__main__    makes each mutant in a copy of the project, runs the tests, and says which one caught it
"""
