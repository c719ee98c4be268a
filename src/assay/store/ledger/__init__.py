"""The facts about runs, in SQLite by itself or PostgreSQL by URL."""
