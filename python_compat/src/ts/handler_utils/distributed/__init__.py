"""Helpers for models that are spread over several processes."""
