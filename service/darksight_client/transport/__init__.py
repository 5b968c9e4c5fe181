"""Connections to servers: which one gets a call, with which credentials, and when a call is retried."""
