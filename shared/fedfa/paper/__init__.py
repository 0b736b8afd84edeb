"""The paper's evaluation (section 5) on the simulator: its runs, each made once, then its tables.

`profiles` has the settings as data, `plan` says which runs each table and figure needs, `runner`
makes those that are missing, `outcomes` reads their logs, `tables` and `figures` show them.
"""
