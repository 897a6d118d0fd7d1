"""Learning: turn recorded episodes into items, and credit items with outcomes."""
