"""What a reply means, and what refusals add up to: rules as data, shield, decision, health.  Pure."""
