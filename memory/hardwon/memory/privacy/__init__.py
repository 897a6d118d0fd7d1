"""Keep secrets out of a library and strangers out of its files."""
