"""Define the types that the loop and its parts share."""
