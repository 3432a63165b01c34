"""What can be scanned: presets and their parts, checkpoint folders, hub ids, and `file.py:factory`.

Importing this imports neither torch nor transformers; building a plan does.
"""

from __future__ import annotations

from exportdoctor.targets.build import Plan, build, build_small_model, check_operations
from exportdoctor.targets.built import BuiltPart, BuiltTarget
from exportdoctor.targets.factory.factory_plan import plan_for_module
from exportdoctor.targets.preset_files import preset_names
from exportdoctor.targets.resolve import resolve, split_factory, target_path
from exportdoctor.targets.small_model import has_small_model, plan_small_models

__all__ = [
    "BuiltTarget", "BuiltPart", "Plan",
    "build", "build_small_model", "check_operations", "has_small_model", "plan_for_module", "plan_small_models",
    "preset_names", "resolve", "split_factory", "target_path",
]  # fmt: skip
