"""Sessions: training whose steps are requests of a client."""
