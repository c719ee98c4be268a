"""The one rule by which campaigns are judged, real or simulated, and what it can find."""
