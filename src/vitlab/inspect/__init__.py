"""A look inside a model: arrays first (filters, positions, distance, rollout, ...), drawing second (figure)."""
