"""What is done to the pixels of one picture, and what its header says."""
