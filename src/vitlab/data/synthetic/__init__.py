"""Synthetic data: images that are drawn from formulas."""
