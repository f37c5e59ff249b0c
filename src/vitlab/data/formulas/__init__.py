"""The formulas behind the generated pictures."""
