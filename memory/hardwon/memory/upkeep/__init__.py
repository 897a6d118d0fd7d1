"""File recorded episodes, inspect and repair a library, move data in and out."""
