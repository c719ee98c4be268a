"""The decision rule of campaigns, real or simulated, its looks, and its power."""
