"""One reader for each layout of data."""
