"""How long, how much memory: pure functions of specs and numbers."""
