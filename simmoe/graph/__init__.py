"""What waits for what: one training iteration as tasks."""
