"""Text that users wrote, parsed within bounds."""
