"""Config objects, their fields, and safe loading of YAML."""
