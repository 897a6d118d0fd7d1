"""Write the hint that a policy sees."""
