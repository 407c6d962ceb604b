"""The environment `compeer-support` for verifiers; everything in it lives in `compeer.integrations.verifiers_env`."""

from compeer.integrations.verifiers_env import SupportEnv, SupportTaskset

__all__ = ["SupportEnv", "SupportTaskset", "load_environment"]


def load_environment(**settings: object) -> SupportEnv:
    """The environment, with settings of `[env]` given as keywords: `load_environment(group=8, taskset={…})`."""
    import verifiers.v1 as vf

    taskset = {"id": "compeer-support", **dict(settings.pop("taskset", {}))}  # type: ignore[call-overload]
    found = vf.load_environment(vf.resolve_env_config({"taskset": taskset, **settings}))
    assert isinstance(found, SupportEnv)
    return found
