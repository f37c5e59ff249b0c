"""The command line: `vitlab VERB`, one file a verb, each parse -> one library call -> print."""
