"""What outlives a process: a run's folder, the list of runs, and the caches. Imports neither torch nor the engine."""
