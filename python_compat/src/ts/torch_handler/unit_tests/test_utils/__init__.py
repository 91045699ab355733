"""Helpers for tests of handlers."""
