"""Federations on a virtual clock: the services' core, tasks and log, without broker or bucket.

`simulation` decides and commits, `workers` trains the open jobs side by side in processes that run
`worker`, the one module here that imports torch. `repetition` trains a real run again from its log.
"""
