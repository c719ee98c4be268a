"""Which data changed: from two versions of the rows to the changes in them, causes before consequences."""
