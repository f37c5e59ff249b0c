"""The kinds of data that `open_source` opens, one file each."""
