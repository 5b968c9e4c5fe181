"""Figures of a report, as plotly.js reads them."""
