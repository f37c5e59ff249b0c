"""From any pile of pictures to batches: sources, decoding, augmentation, and the order they are read in."""
