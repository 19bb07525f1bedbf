"""What a reply means, and what refusals add up to: rules, shield, the states of an upstream.  Pure."""
