"""Synthetic images for pre-training, drawn by formulas."""
