"""Processes of `python -m MODULE …` for tests, forked from one that has done the imports.

Importing torch, transformers and DeepSpeed takes five CPU seconds, a tiny run fractions of one. `client.popen` and
`client.run` take what subprocess takes; `server` is the process that forks; `child` makes of a fork what a new
interpreter would be. What a fork could not imitate is started as ever.
"""
