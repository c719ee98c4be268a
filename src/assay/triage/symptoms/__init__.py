"""What a log says: of which class its failure is, the line that names it, what it shares with others."""
