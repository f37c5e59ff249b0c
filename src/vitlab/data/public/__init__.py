"""The public data sets: where they are, and how they get here."""
