"""Stage objects: what a framework wraps around a stage, with caches and hand-over of its own, judged in one process."""
