"""From any pile of images to batches: sources, decoding, augmentation, and the order they are read in."""
