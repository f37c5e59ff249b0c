"""What files are made of: containers read by position, safely, and bytes written durably."""
