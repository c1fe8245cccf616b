"""Table 1 as published: precision@k / accuracy for k = 4, 8, 16. The paper has no row for WE."""

from __future__ import annotations

PUBLISHED: dict[str, dict[str, str]] = {
    "mnist": {
        "GeM-1": "0.10/0.11  0.10/0.10  0.10/0.10",
        "GeM-2": "0.29/0.32  0.28/0.35  0.29/0.37",
        "GeM-4": "0.39/0.45  0.39/0.47  0.38/0.49",
        "Cov": "0.25/0.27  0.25/0.28  0.25/0.28",
        "FSPool": "0.75/0.80  0.74/0.81  0.73/0.81",
        "SLOSH L<d": "0.52/0.59  0.51/0.61  0.49/0.61",
        "SLOSH L=d": "0.67/0.73  0.64/0.74  0.62/0.73",
        "SLOSH L>d": "0.90/0.92  0.88/0.92  0.87/0.91",
    },
    "modelnet40": {
        "GeM-1": "0.16/0.19  0.16/0.22  0.16/0.25",
        "GeM-2": "0.29/0.34  0.26/0.34  0.23/0.33",
        "GeM-4": "0.31/0.37  0.28/0.38  0.25/0.37",
        "Cov": "0.37/0.42  0.35/0.44  0.32/0.44",
        "FSPool": "0.50/0.57  0.47/0.58  0.42/0.56",
        "SLOSH L<d": "0.22/0.25  0.20/0.27  0.19/0.27",
        "SLOSH L=d": "0.39/0.44  0.36/0.45  0.33/0.44",
        "SLOSH L>d": "0.55/0.61  0.51/0.60  0.46/0.57",
    },
    "oxford5k": {
        "GeM-1": "0.29/0.35  0.25/0.31  0.22/0.29",
        "GeM-2": "0.38/0.53  0.31/0.40  0.27/0.38",
        "GeM-4": "0.35/0.41  0.33/0.51  0.29/0.42",
        "Cov": "0.35/0.55  0.30/0.37  0.26/0.33",
        "FSPool": "0.47/0.53  0.39/0.60  0.32/0.49",
        "SLOSH L<d": "0.33/0.42  0.30/0.49  0.24/0.36",
        "SLOSH L=d": "0.43/0.58  0.39/0.60  0.34/0.55",
        "SLOSH L>d": "0.53/0.69  0.45/0.65  0.38/0.64",
    },
}


def published(name: str, method: str) -> dict[str, list[float]] | None:
    """Return [precision, accuracy] by k, or None for a method that is not in the paper."""
    row = PUBLISHED[name].get(method)
    if row is None:
        return None
    return {k: [float(x) for x in cell.split("/")] for k, cell in zip(("4", "8", "16"), row.split(), strict=True)}
