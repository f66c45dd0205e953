"""What is kept between runs: sessions, usage, users, credentials and jobs, in SQLite, files or PostgreSQL."""
