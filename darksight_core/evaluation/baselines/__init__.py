"""Other methods that the map and its scores are compared with."""
