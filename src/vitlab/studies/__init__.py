"""Studies: several runs that together answer one question."""
