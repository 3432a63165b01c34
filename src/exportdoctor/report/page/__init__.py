"""The HTML report: what a page shows of a run, and its templates, style and script."""
