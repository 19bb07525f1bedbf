"""The practice upstream: an owner without an account practises on it, and the demo shows it."""
