"""Public data sets: what they hold, where they are, how they are fetched."""
