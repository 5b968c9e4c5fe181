"""Scoring without a transport: validate, score, decide, record, count."""
