"""Files and bytes: atomic writes, locks, hashes, caches, zip, tar and npz files, optional imports, progress, prefetch."""
