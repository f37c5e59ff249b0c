"""Interpretation: what a model attends to, and what it has learned."""
