"""What will become of the queue: when each message goes, what an edit would change, what should spill."""
