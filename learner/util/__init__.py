"""Text, trees, files: helpers without a subject of their own."""
