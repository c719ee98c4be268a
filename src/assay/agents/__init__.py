"""Facts of a home for agents, by the Model Context Protocol: reads only."""
