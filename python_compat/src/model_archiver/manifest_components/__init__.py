"""The parts of a model archive's manifest."""
