"""Nonlinear fits of the Statistical Reference Datasets of NIST, with their certified sums of squares.

Each has two starts: "far" and "near"; the near ones of three are in ``mgh.py``. Only those sets are here whose data
reproduce the certified sum of squares at the certified parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import torch
from torch import Tensor

from .mgh import kowalik_osborne, least_squares, meyer, osborne_1, steps
from .programme import Programme, numbers, readings

# Misra 1: volume of gas against pressure
PRESSURE = numbers([77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0])
VOLUME = numbers([10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78])

# Daniel and Wood: energy radiated by a filament
TEMPERATURE = numbers([1.309, 1.471, 1.490, 1.565, 1.611, 1.680])
ENERGY = numbers([2.138, 3.421, 3.597, 4.340, 4.882, 5.660])

# Box: biochemical oxygen demand
DAYS = numbers([1, 2, 3, 5, 7, 10])
DEMAND = numbers([109, 149, 149, 191, 213, 224])

# Ratkowsky: growth of pasture and of onions
PASTURE_AGE = numbers([9, 14, 21, 28, 42, 57, 63, 70, 79])
PASTURE = numbers([8.93, 10.8, 18.59, 22.33, 39.35, 56.11, 61.73, 64.62, 67.08])
ONIONS = readings(
    """
    16.08 33.83 65.80 97.20 191.55 326.20 386.87 520.53 590.03 651.92 724.93 699.56 689.96 637.56 717.41
    """
)

# Eckerle: transmittance against wavelength
WAVELENGTH = readings(
    """
    400 405 410 415 420 425 430 435 436.5 438 439.5 441 442.5 444 445.5 447 448.5 450 451.5 453 454.5 456 457.5
    459 460.5 462 463.5 465 470 475 480 485 490 495 500
    """
)
TRANSMITTANCE = readings(
    """
    0.0001575 0.0001699 0.0002350 0.0003102 0.0004917 0.0008710 0.0017418 0.0046400 0.0065895 0.0097302
    0.0149002 0.0237310 0.0401683 0.0712559 0.1264458 0.2073413 0.2902366 0.3445623 0.3698049 0.3668534
    0.3106727 0.2078154 0.1164354 0.0616764 0.0337200 0.0194023 0.0117831 0.0074357 0.0022732 0.0008800
    0.0004579 0.0002345 0.0001586 0.0001143 0.0000710
    """
)

# Thurber: mobility of electrons against the logarithm of density
DENSITY = readings(
    """
    -3.067 -2.981 -2.921 -2.912 -2.840 -2.797 -2.702 -2.699 -2.633 -2.481 -2.363 -2.322 -1.501 -1.460 -1.274
    -1.212 -1.100 -1.046 -0.915 -0.714 -0.566 -0.545 -0.400 -0.309 -0.109 -0.103 0.010 0.119 0.377 0.790 0.963
    1.006 1.115 1.572 1.841 2.047 2.200
    """
)
MOBILITY = readings(
    """
    80.574 84.248 87.264 87.195 89.076 89.608 89.868 90.101 92.405 95.854 100.696 101.060 401.672 390.724
    567.534 635.316 733.054 759.087 894.206 990.785 1090.109 1080.914 1122.643 1178.351 1260.531 1273.514
    1288.339 1327.543 1353.863 1414.509 1425.208 1421.384 1442.962 1464.350 1468.705 1447.894 1457.628
    """
)

# Roszman: the quantum defects of iodine atoms
EXCITED = readings(
    """
    -4868.68 -4868.09 -4867.41 -3375.19 -3373.14 -3372.03 -2473.74 -2472.35 -2469.45 -1894.65 -1893.40 -1497.24
    -1495.85 -1493.41 -1208.68 -1206.18 -1206.04 -997.92 -996.61 -996.31 -834.94 -834.66 -710.03 -530.16 -464.17
    """
)
DEFECT = readings(
    """
    0.252429 0.252141 0.251809 0.297989 0.296257 0.295319 0.339603 0.337731 0.333820 0.389510 0.386998 0.438864
    0.434887 0.427893 0.471568 0.461699 0.461144 0.513532 0.506641 0.505062 0.535648 0.533726 0.568064 0.612886
    0.624169
    """
)

# Chwirut 2: the response of an ultrasonic instrument against the distance of metal
DISTANCE = readings(
    """
    0.5 1 1.75 3.75 5.75 0.875 2.25 3.25 5.25 0.75 1.75 2.75 4.75 0.625 1.25 2.25 4.25 0.5 3 0.75 3 1.5 6 3 6
    1.5 3 0.5 2 4 0.75 2 5 0.75 2.25 3.75 5.75 3 0.75 2.5 4 0.75 2.5 4 0.75 2.5 4 0.5 6 3 0.5 2.75 0.5 1.75
    """
)
RESPONSE = readings(
    """
    92.9 57.1 31.05 11.5875 8.025 63.6 21.4 14.25 8.475 63.8 26.8 16.4625 7.125 67.3 41 21.15 8.175 81.5 13.12
    59.9 14.62 32.9 5.44 12.56 5.44 32 13.95 75.8 20 10.42 59.5 21.67 8.55 62 20.2 7.76 3.75 11.81 54.7 23.7
    11.55 61.3 17.7 8.74 59.2 16.3 8.62 81 4.87 14.62 81.7 17.17 81.3 28.9
    """
)

# ENSO: monthly differences of air pressure between Easter Island and Darwin
AIR = readings(
    """
    12.9 11.3 10.6 11.2 10.9 7.5 7.7 11.7 12.9 14.3 10.9 13.7 17.1 14 15.3 8.5 5.7 5.5 7.6 8.6 7.3 7.6 12.7 11
    12.7 12.9 13 10.9 10.4 10.2 8 10.9 13.6 10.5 9.2 12.4 12.7 13.3 10.1 7.8 4.8 3 2.5 6.3 9.7 11.6 8.6 12.4
    10.5 13.3 10.4 8.1 3.7 10.7 5.1 10.4 10.9 11.7 11.4 13.7 14.1 14 12.5 6.3 9.6 11.7 5 10.8 12.7 10.8 11.8
    12.6 15.7 12.6 14.8 7.8 7.1 11.2 8.1 6.4 5.2 12 10.2 12.7 10.2 14.7 12.2 7.1 5.7 6.7 3.9 8.5 8.3 10.8 16.7
    12.6 12.5 12.5 9.8 7.2 4.1 10.6 10.1 10.1 11.9 13.6 16.3 17.6 15.5 16 15.2 11.2 14.3 14.5 8.5 12 12.7 11.3
    14.5 15.1 10.4 11.5 13.4 7.5 0.6 0.3 5.5 5 4.6 8.2 9.9 9.2 12.5 10.9 9.9 8.9 7.6 9.5 8.4 10.7 13.6 13.7 13.7
    16.5 16.8 17.1 15.4 9.5 6.1 10.1 9.3 5.3 11.2 16.6 15.6 12 11.5 8.6 13.8 8.7 8.6 8.6 8.7 12.8 13.2 14 13.4
    14.8
    """
)

# Lanczos: three exponentials, rounded
LANCZOS_TIMES = steps(24, 0) * 0.05


def lanczos(u: Tensor) -> Tensor:
    return sum(u[2 * i] * torch.exp(-u[2 * i + 1] * LANCZOS_TIMES) for i in range(3))


EXACT = lanczos(numbers([0.0951, 1, 0.8607, 3, 1.5576, 5]))
SIX_DIGITS = numbers([float(f"{value:.5e}") for value in EXACT.tolist()])
FOUR_DECIMALS = EXACT.round(decimals=4)
LANCZOS_STARTS = ([1.2, 0.3, 5.6, 5.5, 6.5, 7.6], [0.5, 0.7, 3.6, 4.2, 4, 6.3])


def thurber(u: Tensor) -> Tensor:
    powers = DENSITY[:, None] ** steps(4, 0)
    return powers @ u[:4] / (1 + powers[:, 1:] @ u[4:]) - MOBILITY


def onions(u: Tensor) -> Tensor:
    return u[0] / (1 + torch.exp(u[1] - u[2] * steps(15))) ** (1 / u[3]) - ONIONS


def eckerle(u: Tensor) -> Tensor:
    return u[0] / u[1] * torch.exp(-0.5 * ((WAVELENGTH - u[2]) / u[1]) ** 2) - TRANSMITTANCE


def enso(u: Tensor) -> Tensor:
    def wave(cosine: Tensor, sine: Tensor, period: Tensor | float) -> Tensor:
        angle = 2 * pi * steps(168) / period
        return cosine * angle.cos() + sine * angle.sin()

    return u[0] + wave(u[1], u[2], 12) + wave(u[4], u[5], u[3]) + wave(u[7], u[8], u[6]) - AIR


def roszman(u: Tensor) -> Tensor:
    return u[0] - u[1] * EXCITED - torch.atan(u[2] / (EXCITED - u[3])) / pi - DEFECT


def misra(model: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda u: u[0] * model(u[1] * PRESSURE) - VOLUME


def fit(name: str, residual: Callable[[Tensor], Tensor], optimum: float, far, near) -> list[Programme]:
    starts = {f"{name} far": far, f"{name} near": near}
    return [least_squares(name, residual, start, optimum) for name, start in starts.items()]


PROBLEMS = [
    *fit("Misra1a", misra(lambda z: -torch.expm1(-z)), 1.2455138894e-1, [500, 1e-4], [250, 5e-4]),
    *fit("Misra1b", misra(lambda z: 1 - (1 + z / 2) ** -2), 7.5464681533e-2, [500, 1e-4], [300, 2e-4]),
    *fit("Misra1c", misra(lambda z: 1 - (1 + 2 * z) ** -0.5), 4.0966836971e-2, [500, 1e-4], [600, 2e-4]),
    *fit("Misra1d", misra(lambda z: z / (1 + z)), 5.6419295283e-2, [500, 1e-4], [450, 3e-4]),
    *fit("DanWood", lambda u: u[0] * TEMPERATURE ** u[1] - ENERGY, 4.3173084083e-3, [1, 5], [0.7, 4]),
    *fit("BoxBOD", lambda u: -u[0] * torch.expm1(-u[1] * DAYS) - DEMAND, 1.1680088766e3, [1, 1], [100, 0.75]),
    *fit(
        "Rat42",
        lambda u: u[0] / (1 + torch.exp(u[1] - u[2] * PASTURE_AGE)) - PASTURE,
        8.0565229338,
        [100, 1, 0.1],
        [75, 2.5, 0.07],
    ),
    *fit("Rat43", onions, 8.7864049080e3, [100, 10, 1, 1], [700, 5, 0.75, 1.3]),
    *fit("Eckerle4", eckerle, 1.4635887487e-3, [1, 10, 500], [1.5, 5, 450]),
    *fit(
        "Thurber",
        thurber,
        5.6427082397e3,
        [1000, 1000, 400, 40, 0.7, 0.3, 0.03],
        [1300, 1500, 500, 75, 1, 0.4, 0.05],
    ),
    least_squares("MGH09 far", kowalik_osborne, [25, 39, 41.5, 39], 3.0750560385e-4),
    least_squares("MGH10 far", meyer, [2, 4e5, 2.5e4], 8.7945855171e1),
    least_squares("MGH17 far", osborne_1, [50, 150, -100, 1, 2], 5.4648946975e-5),
    *fit("Lanczos2", lambda u: lanczos(u) - SIX_DIGITS, 2.2299428125e-11, *LANCZOS_STARTS),
    *fit("Lanczos3", lambda u: lanczos(u) - FOUR_DECIMALS, 1.6117193594e-8, *LANCZOS_STARTS),
    *fit("Roszman1", roszman, 4.9484847331e-4, [0.1, -1e-5, 1000, -100], [0.2, -5e-6, 1200, -150]),
    *fit(
        "Chwirut2",
        lambda u: torch.exp(-u[0] * DISTANCE) / (u[1] + u[2] * DISTANCE) - RESPONSE,
        5.1304802941e2,
        [0.1, 0.01, 0.02],
        [0.15, 0.008, 0.01],
    ),
    *fit(
        "ENSO",
        enso,
        7.8853978668e2,
        [11, 3, 0.5, 40, -0.7, -1.3, 25, -0.3, 1.4],
        [10, 3, 0.5, 44, -1.5, 0.5, 26, -0.1, 1.5],
    ),
]
