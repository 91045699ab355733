"""Preprocessing outside of torch."""
