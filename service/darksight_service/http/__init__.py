"""HTTP: the API, the explorer, and the servers of both."""
