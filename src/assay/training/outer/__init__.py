"""Training over several clusters that exchange compressed changes of the weights every few steps."""
