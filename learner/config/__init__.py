"""Config objects, their fields, and YAML that is safe to read."""
