"""Seeds that are not alike: what a table shows of them, and the mean that leaves both ends out."""
