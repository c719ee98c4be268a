"""Forms of scaling laws: a sum of terms, each a coefficient times powers of the run's variables.

    chinchilla      L = A / N^alpha + B / D^beta + E        Hoffmann et al. 2022, approach 3
    over-training   L = A / N^alpha + B / D^alpha + E       Gadre et al. 2024: one exponent, so that at a fixed
                                                            ratio M = D/N the loss is a power law in compute:
                                                            E + (a M^eta + b M^-eta) C^-eta, eta = alpha / 2
    compute         L = A / C^alpha + E                     one family of runs along its own frontier
    tokens          L = B / D^beta + E                      one model on more and more data

The *logarithm* of every term is linear in (log coefficients, exponents). A form is therefore a tensor of features, the
log of the loss is the log-sum-exp of `features @ theta`, and one solver with exact derivatives fits all forms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from assay.base.errors import ConfigError, DataError
from assay.statistics.scaling.points import ScalingPoints, Variables
from assay.statistics.scaling.solver import Features, Theta


@dataclass(frozen=True)
class Term:
    """`coefficient / variable^exponent`, or the coefficient alone."""

    coefficient: str
    variable: str | None = None
    exponent: str | None = None


@dataclass(frozen=True)
class ScalingForm:
    """A sum of terms."""

    name: str
    formula: str
    terms: Sequence[Term]

    @property
    def parameter_names(self) -> list[str]:
        """Coefficients, then exponents, each once."""
        exponents = [term.exponent for term in self.terms if term.exponent is not None]
        return [term.coefficient for term in self.terms] + list(dict.fromkeys(exponents))

    @property
    def variables(self) -> list[str]:
        """The variables that a point must have."""
        return list(dict.fromkeys(term.variable for term in self.terms if term.variable is not None))

    @property
    def scale(self) -> str:
        """The variable that orders runs from small to large."""
        return "compute" if len(self.variables) > 1 else self.variables[0]

    @property
    def min_points(self) -> int:
        """Minimum number of points: two for each parameter."""
        return 2 * len(self.parameter_names)

    def center(self, points: ScalingPoints) -> dict[str, float]:
        """Return the mean logarithm of each variable.

        Centered features make coefficients and exponents nearly uncorrelated, so a fit converges from any start.
        """
        return {name: float(np.log(points.variables[name]).mean()) for name in self.variables}

    def features(self, variables: Variables, center: Mapping[str, float]) -> Features:
        """Return the tensor whose product with theta is the logarithm of each term."""
        names = self.parameter_names
        num_points = len(variables[self.variables[0]])
        features = np.zeros((num_points, len(self.terms), len(names)))
        for index, term in enumerate(self.terms):
            features[:, index, index] = 1.0
            if term.variable is not None and term.exponent is not None:
                logs = np.log(variables[term.variable]) - center[term.variable]
                features[:, index, names.index(term.exponent)] = -logs
        return features

    def formula_parameters(self, theta: Theta, center: Mapping[str, float]) -> Theta:
        """[fit, parameter]: convert thetas to the coefficients and exponents of the formula."""
        names = self.parameter_names
        values = theta.copy()
        for index, term in enumerate(self.terms):
            if term.variable is not None and term.exponent is not None:
                values[:, index] += theta[:, names.index(term.exponent)] * center[term.variable]
        # A bootstrap sample that does not determine a term gives infinity.
        with np.errstate(over="ignore"):
            values[:, : len(self.terms)] = np.exp(values[:, : len(self.terms)])
        return values

    def check(self, points: ScalingPoints) -> None:
        """Raise `DataError` unless the points determine the form's parameters."""
        if missing := [name for name in self.variables if name not in points.variables]:
            raise DataError(
                f"the points have no {' and '.join(missing)}, which '{self.name}' ({self.formula}) needs. "
                f"Add the column, or choose another form: {', '.join(FORMS)}."
            )
        if points.num_points < self.min_points:
            raise DataError(
                f"{points.num_points} points for the {len(self.parameter_names)} parameters of '{self.name}': "
                f"expected at least {self.min_points}. Train more small runs, or choose a form with fewer."
            )
        for name in self.variables:
            if (distinct := len(np.unique(points.variables[name]))) < 3:
                raise DataError(
                    f"the points have {distinct} different values of {name}, too few to fit a curve. "
                    "Use at least 3 values, preferably over a factor of 10."
                )


_E = Term("E")
FORMS = {
    form.name: form
    for form in (
        ScalingForm(
            "chinchilla",
            "L = A/N^alpha + B/D^beta + E",
            (Term("A", "parameters", "alpha"), Term("B", "tokens", "beta"), _E),
        ),
        ScalingForm(
            "over-training",
            "L = A/N^alpha + B/D^alpha + E",
            (Term("A", "parameters", "alpha"), Term("B", "tokens", "alpha"), _E),
        ),
        ScalingForm("compute", "L = A/C^alpha + E", (Term("A", "compute", "alpha"), _E)),
        ScalingForm("tokens", "L = B/D^beta + E", (Term("B", "tokens", "beta"), _E)),
    )
}


def forms_that_suit(points: ScalingPoints) -> list[ScalingForm]:
    """Return the forms whose parameters the points determine: of two variables if both vary, else of one.

    If there is none, return the first form, whose `check` says what is missing.
    """
    for names in (("chinchilla", "over-training"), ("tokens",), ("compute",)):
        if found := [FORMS[name] for name in names if _suits(FORMS[name], points)]:
            return found
    return [FORMS["chinchilla"]]


def _suits(form: ScalingForm, points: ScalingPoints) -> bool:
    try:
        form.check(points)
    except DataError:
        return False
    return True


def form_named(name: str) -> ScalingForm:
    """Return one of `FORMS`; raise `ConfigError` for other names."""
    if name not in FORMS:
        raise ConfigError(f"'{name}' is no form of a scaling law. Choose one of {', '.join(FORMS)}.")
    return FORMS[name]
