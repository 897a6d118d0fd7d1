"""Trust decisions about episodes and text from other programs."""
