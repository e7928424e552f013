"""`learner watch`: runs in a terminal, while they train or afterwards, from their files alone.

The content (`live_run`, `watched`, `view`, `drawing`, `panels`) does not depend on a terminal. Its display (`widgets`,
`app`) needs textual, of the extra `watch`, which is imported on use.
"""
