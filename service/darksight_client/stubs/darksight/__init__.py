"""Generated from protos/ by ./dev proto."""
