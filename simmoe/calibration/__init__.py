"""Measured against simulated: profiler traces, and how a cluster differs from the database."""
