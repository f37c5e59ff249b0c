"""Quality checks of datasets, duplicates, contact sheets."""
