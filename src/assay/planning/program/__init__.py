"""The program's file format, and the plan, offer and progress that follow from it."""
