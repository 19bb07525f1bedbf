"""The operator's verbs: over the socket of a running relay, or offline on its spool."""
