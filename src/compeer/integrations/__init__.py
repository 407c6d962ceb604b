"""The benchmarks and rewards as other projects' users run them: Inspect tasks, a verifiers environment.

Each module needs an extra of its own (`pip install '.[inspect]'`, `'.[verifiers]'`) and is imported by that
project alone: Inspect finds `inspect_tasks` by its entry point, verifiers imports the package `compeer_support`.
"""
