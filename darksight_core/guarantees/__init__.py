"""Thresholds and p-values with stated guarantees."""
