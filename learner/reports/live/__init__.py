"""`learner watch`: runs in a terminal, while they train or afterwards, from their files alone.

What is shown (`live`, `watched`, `view`, `drawing`, `texts`) knows no terminal; how (`widgets`, `app`) needs the extra
`watch`: textual, which is loaded when it is used.
"""
