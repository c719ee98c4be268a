"""A regression on how long a row is: a method that is only a test's, to see what a method takes."""
