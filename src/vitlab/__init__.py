"""vitlab: the Vision Transformer, whole. Models, training, evaluation, a look inside, and everybody's checkpoints."""

__version__ = "0.2.0"
