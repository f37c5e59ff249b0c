"""Complete training runs by name, and the tables of the paper they come from."""

from vitlab.recipes.table import recipe

__all__ = ["recipe"]
