"""Configs as users write them: reading them, checking all of them before anything is called, and building from them."""
