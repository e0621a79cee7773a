"""So what: numbers and pictures computed from a timeline."""
