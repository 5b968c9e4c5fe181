"""A scored row: its schema and what derives from it; tags, tables of rows, and vectors on the probability simplex."""
