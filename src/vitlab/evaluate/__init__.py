"""How good a model is: honest numbers from its answers. Every picture counts, and what could not be read is said."""
