"""The line of an upstream as the estimate plays it through, on copies of its own."""
