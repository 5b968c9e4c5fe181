"""Logs, traces and the header that joins them."""
