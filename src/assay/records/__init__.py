"""The facts that one stage hands the next: one module per arrow."""
