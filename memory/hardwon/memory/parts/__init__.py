"""The parts of an open library: its file, its items, its episodes and its administration, and what recalls them."""
