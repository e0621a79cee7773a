"""The planners by name, all asked in the same way."""

from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple

from simmoe.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from simmoe.planners.proposal import Ranking
    from simmoe.specs.scenario import Scenario


class Planner(StrEnum):
    """Names of the planners."""

    HAPMOE = "hapmoe"
    HETERMOE = "hetermoe"
    JOINT = "joint"
    UNIFORM = "uniform"
    METIS = "metis"
    ALPA = "alpa"
    EP = "ep"
    DEEPSPEED_MOE = "deepspeed-moe"
    TUTEL = "tutel"
    FSDP_EP = "fsdp-ep"
    DISTEP = "distep"
    HETERO_PP = "hetero-pp"
    RANDOM = "random"


class Mode(StrEnum):
    """How HAPMoE's question is answered."""

    EXACT = "exact"
    PAPER = "paper"
    BRUTE = "brute"


PURPOSE: dict[Planner, str] = {
    Planner.HAPMOE: "pipelines whose stages differ in everything, optimal by a bound",
    Planner.HETERMOE: "attention and experts on unlike GPUs",
    Planner.JOINT: "both at once: any stage may take attention and experts apart",
    Planner.UNIFORM: "the best Megatron plan with equal stages",
    Planner.METIS: "unlike stages, expert sizes frozen",
    Planner.ALPA: "the best pipeline if all GPUs were the slowest",
    Planner.EP: "experts over all GPUs",
    Planner.DEEPSPEED_MOE: "experts over all GPUs with ZeRO",
    Planner.TUTEL: "the same with exchanges in pieces",
    Planner.FSDP_EP: "sharded parameters and experts over all GPUs",
    Planner.DISTEP: "hetermoe without overlap",
    Planner.HETERO_PP: "pipelines of single GPUs",
    Planner.RANDOM: "the best of some random uniform plans",
}
"""What each is, in a few words."""


class Request(NamedTuple):
    """What every planner is asked besides the scenario.

    Attributes
    ----------
    top : int
        Proposals to return.
    mode : str
        Of HAPMoE's planner.
    """

    top: int = 5
    mode: Literal["exact", "paper", "brute"] = "exact"


def ask(planner: Planner, scenario: "Scenario", request: Request | None = None) -> "Ranking":
    """The ranking of a planner.

    Parameters
    ----------
    planner : Planner
    scenario : Scenario
    request : Request or None

    Raises
    ------
    SpecError
        If the mode is not one of this planner, or the planner cannot be asked about such a scenario.
    """
    request = request or Request()
    if request.mode != "exact" and planner is not Planner.HAPMOE:
        raise SpecError([f"--mode {request.mode} belongs to --planner hapmoe (got {planner}), leave it out"])
    return _ANSWERS[planner](scenario, request)


def _hapmoe(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.hapmoe import hapmoe

    return hapmoe(scenario, mode=request.mode, top=request.top)


def _hetermoe(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.hetermoe import plan

    return plan(scenario, top=request.top)


def _joint(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.joint import joint

    return joint(scenario, top=request.top)


def _uniform(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.uniform import uniform

    return uniform(scenario, top=request.top)


def _metis(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.metis import metis

    return metis(scenario, top=request.top)


def _alpa(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.alpa import alpa

    return alpa(scenario, top=request.top)


def _ep(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.baselines import expert_parallel

    return expert_parallel(scenario, top=request.top)


def _deepspeed_moe(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.published_systems import deepspeed_moe

    return deepspeed_moe(scenario, top=request.top)


def _tutel(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.published_systems import tutel

    return tutel(scenario, top=request.top)


def _fsdp_ep(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.published_systems import fsdp_ep

    return fsdp_ep(scenario, top=request.top)


def _distep(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.disaggregated import disaggregated

    return disaggregated(scenario, top=request.top)


def _hetero_pp(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.hetero_pipeline import hetero_pipeline

    return hetero_pipeline(scenario, top=request.top)


def _random(scenario: "Scenario", request: Request) -> "Ranking":
    from simmoe.planners.random_plans import random_plans

    return random_plans(scenario, top=request.top)


# A function each: planners are imported when they are asked.
_ANSWERS: "dict[Planner, Callable[[Scenario, Request], Ranking]]" = {
    Planner.HAPMOE: _hapmoe,
    Planner.HETERMOE: _hetermoe,
    Planner.JOINT: _joint,
    Planner.UNIFORM: _uniform,
    Planner.METIS: _metis,
    Planner.ALPA: _alpa,
    Planner.EP: _ep,
    Planner.DEEPSPEED_MOE: _deepspeed_moe,
    Planner.TUTEL: _tutel,
    Planner.FSDP_EP: _fsdp_ep,
    Planner.DISTEP: _distep,
    Planner.HETERO_PP: _hetero_pp,
    Planner.RANDOM: _random,
}
