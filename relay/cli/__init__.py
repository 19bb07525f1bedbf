"""The command `relay`: one file for each verb, or for a few verbs that belong together.

`main` finds the verb and turns errors into exit codes; `options` and `output` hold what verbs share.  A verb
is a click command that returns None or its exit code.  Its file is imported only when the verb is called, so
`relay check` loads no server.
"""
