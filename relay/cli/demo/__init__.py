"""`relay demo`: a practice upstream that cuts off whoever is too fast, and mail paced through it."""
