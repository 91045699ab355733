"""The parts of a workflow archive's manifest."""
