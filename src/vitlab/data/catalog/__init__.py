"""The catalog of public datasets: what they are, and how they are downloaded."""
