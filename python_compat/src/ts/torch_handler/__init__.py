"""The built-in handlers, and the classes to derive handlers from."""
