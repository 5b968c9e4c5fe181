"""The decision about a row: accept or reject, for a reason, under a policy."""
