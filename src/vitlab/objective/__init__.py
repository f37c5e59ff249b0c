"""What a model is asked to do, and how well it does it: losses and metrics."""
