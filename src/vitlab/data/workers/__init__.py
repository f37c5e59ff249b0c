"""Workers of the loader: the caller, threads or processes."""
