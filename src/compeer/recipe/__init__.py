"""An experiment in one short file, and the run that it describes."""

from compeer.recipe.file import Recipe, explain, load_recipe, recipe_path
from compeer.recipe.run import judges_hash, run_recipe

__all__ = ["Recipe", "explain", "judges_hash", "load_recipe", "recipe_path", "run_recipe"]
