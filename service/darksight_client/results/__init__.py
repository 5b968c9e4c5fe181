"""Results of calls, as the service returns them."""
