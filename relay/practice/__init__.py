"""The practice upstream, for an owner who has no account yet, and for the demonstration (`make demo`)."""
