"""What can be scanned: presets and their parts, checkpoint folders, hub ids, and `file.py:factory`.

Importing this imports neither torch nor transformers; building a plan does.
"""

from __future__ import annotations

from exportdoctor.targets.built import Built, BuiltPart, Plan
from exportdoctor.targets.factory_plan import plan_for_module
from exportdoctor.targets.preset_files import preset_names
from exportdoctor.targets.resolve import resolve

__all__ = ["Built", "BuiltPart", "Plan", "plan_for_module", "preset_names", "resolve"]
