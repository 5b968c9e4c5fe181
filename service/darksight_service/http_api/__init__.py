"""HTTP transports of the service."""
