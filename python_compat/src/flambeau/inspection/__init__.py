"""Reads the code of a model's archive for `flambeau check`, and runs none of it."""
