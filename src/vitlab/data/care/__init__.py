"""Looking through a data set, and packing it: duplicates, leaks, broken files, contact sheets, shards."""
