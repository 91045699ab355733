"""Models that are spread over several processes: a leader that the server starts, and the ranks that torchrun starts for it."""
