"""Scans many targets on a Dask cluster, and makes an atlas of the answers."""
