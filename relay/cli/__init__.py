"""The command `relay`: a file for each verb, or for a few that belong together.

`main` finds the verb and turns what goes wrong into an exit code; `options`, `locate`, `table` and `render`
hold what verbs have in common.  A verb is a click command that returns None or its exit code, and is imported
only when it is called, so that `relay check` loads no server.
"""
