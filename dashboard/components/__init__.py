"""Drawings that plotly has no figure for: each a module with its script and its style sheet, no network, no library."""
