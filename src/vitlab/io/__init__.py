"""Bytes and files: atomic writes, hashes, caches, archives. Nothing here knows machine learning."""
