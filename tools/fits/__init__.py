"""Fits of the kernel and link parameters in `hardware_db` to published measurements."""
