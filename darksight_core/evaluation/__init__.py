"""How good a map and its scores are, measured on rows."""
