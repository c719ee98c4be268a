"""What a recipe takes on other numbers of workers, from some seconds on one or two."""
