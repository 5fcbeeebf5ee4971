"""Nodes from Dask: one process holds Dask-Jobqueue's jobs, and commands run on them as Dask tasks.

``jobscripts/lib/dask.bash`` calls it as ``python -m trainer.launch.dask``. A rank is never the task itself: signals
need a main thread, workers under a nanny may not have children, and an exit would end the worker.
"""
