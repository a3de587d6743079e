"""The only room that holds SQL."""
