"""Parse and check the settings of a training run."""
