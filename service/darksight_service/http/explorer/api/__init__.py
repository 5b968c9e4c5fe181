"""Endpoints of the explorer's pages, one module per page."""
