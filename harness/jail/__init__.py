"""The bubblewrap jail behind `harness.local_environment`, in small parts that know nothing about Harbor.

* `tools` finds the host programs and says what is missing; `check` proves that the jail holds before it is used.
* `space` owns the temporary directories of a trial, `owner` tells which of them belong to dead processes.
* `image` lays out the file tree that plays the container, `command` turns it into one bubblewrap command line.
* `process` runs that command bounded in time and output, `limits` bounds memory and processes, `transfer` moves files.
* `forwarder` (host) and `relay` (jail) are the two ends of the network allowlist.
"""
