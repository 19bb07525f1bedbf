"""What a reply means, and what refusals add up to: rules, shield, slow start, an upstream's states.  Pure."""
