"""The command line: `vitlab VERB ...` calls the function of `vitlab.api` and prints its result."""
