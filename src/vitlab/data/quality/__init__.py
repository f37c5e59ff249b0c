"""Quality checks of a dataset."""
