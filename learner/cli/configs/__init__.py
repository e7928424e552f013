"""Configs as users write them: reading, checking all of a config before anything is called, and building objects."""
