"""Datasets: readers, splits, decoding, transforms, samplers, the loader, synthetic data, quality checks, the catalog."""
