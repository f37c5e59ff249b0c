"""Readers: one module per format of datasets."""
