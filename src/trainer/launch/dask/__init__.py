"""Nodes by Dask: jobs of Dask-Jobqueue are held by one process, and commands run on them as tasks.

``jobscripts/lib/dask.bash`` calls it as ``python -m trainer.launch.dask``. A rank is never the task itself: signals
need a main thread, workers under a nanny may have no children, and an exit would end the worker.
"""
