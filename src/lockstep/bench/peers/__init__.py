"""The same work in other implementations: programs of their own, run by whatever interpreter has them.

They print `steps N` after every update, N being the environment steps so far.
"""
