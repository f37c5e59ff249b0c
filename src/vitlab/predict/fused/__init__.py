"""A Vision Transformer for inference alone: the same mathematics with everything folded that can be."""
