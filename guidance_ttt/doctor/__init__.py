"""`guidance-ttt doctor`: is everything there that a run needs, and if not, what to do?

One module per area holds small checks; `registry` lists them and `runner` gives each its time.  A check never raises a
traceback at the user: what goes wrong inside it becomes a failure line.
"""
