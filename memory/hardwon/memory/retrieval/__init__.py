"""Find the steps and items that fit a situation, and rank them."""
