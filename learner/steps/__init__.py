"""Steps and programs: pure functions of arrays. Nothing here reads a file, starts a thread or looks at a clock."""
