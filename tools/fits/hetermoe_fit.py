"""Search the numbers of the stack of HeterMoE that meet the figures of `tools.fits.hetermoe` best.

    python -m tools.fits.hetermoe_fit

It prints `SoftwareStack.narrow_gemm_fill`, and what the attention of the stack (kernel ``deepspeed``) reaches of
FlashAttention 2 (A40, L40S) or of the memory-efficient kernel (V100, T4) of the same part. Rounded, they are what
``hardware_db/software/deepspeed-moe-2024.yaml`` and ``efficiency/*/attention.csv`` hold. Experts keep the kernels of
the database, whose ratios are within 3 % of Fig 2 as they are.
"""

import math
import sys
from collections.abc import Sequence

from scipy.optimize import least_squares

from simmoe.specs import catalog
from tools.fits.hetermoe import A40, KERNEL, L40S, ROWS, STACK, T4, V100, Setting, shipped

MEASURED = {A40: "fa2", L40S: "fa2", V100: "memory-efficient", T4: "memory-efficient"}


def fitted() -> dict[str, float]:
    """The numbers that meet the rows best: the fill, and the share of its measured attention that each part reaches.

    The share is one for A40 and L40S; V100 and T4 have their own, which the ratios of Fig 2 decide. Each row weighs as
    much as its tolerance says.
    """
    base = shipped()
    rates = {part: _shipped_share(part) for part in MEASURED}

    def setting(at: Sequence[float]) -> Setting:
        shares = {A40: at[1], L40S: at[1], V100: at[2], T4: at[3]}
        number = base.software.narrow_gemm_fill
        if number is None:
            raise ValueError(f"{STACK} has no narrow_gemm_fill to fit")
        fill = number.model_copy(update={"value": 1000.0 * at[0]})
        software = base.software.model_copy(update={"narrow_gemm_fill": fill})
        return Setting(software, tuple((part, share / rates[part]) for part, share in shares.items()))

    def residuals(at: Sequence[float]) -> list[float]:
        now = setting([float(value) for value in at])
        return [math.log(row.simulated(now) / row.value) / math.log(row.high / row.value) for row in ROWS]

    found = least_squares(
        residuals, [1.0, 0.7, 0.7, 0.7], bounds=([0.0] + 3 * [0.2], [4.0] + 3 * [1.0]), diff_step=0.02
    ).x
    return {"narrow_gemm_fill": 1000.0 * found[0], f"{A40}, {L40S}": found[1], V100: found[2], T4: found[3]}


def _shipped_share(part: str) -> float:
    """What the attention of the stack reaches of the measured kernel of a part."""
    rates = {
        fit.kernel: fit.compute.value for fit in catalog.accelerator(part).efficiency.attention if fit.head_dim == 128
    }
    return rates[KERNEL] / rates[MEASURED[part]]


def main() -> int:
    """Entry point of ``python -m tools.fits.hetermoe_fit``."""
    for name, value in fitted().items():
        print(f"{name:24s}{value:10.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
