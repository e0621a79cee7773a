"""Words: parse the command line, call, print."""
