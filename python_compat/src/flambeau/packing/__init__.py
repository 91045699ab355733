"""Collects the files of an archive and writes it whole or not at all; both archivers are built on it."""
