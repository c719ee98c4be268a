"""What a cluster logs of steps that came too late, from which the account of device time follows."""

from integration.test_outer_deaths import Clusters, clusters, quiet, ranks  # noqa: F401
from outer_clusters import train_clusters


def test_a_cluster_logs_the_inner_steps_that_no_outer_step_names(clusters: Clusters) -> None:  # noqa: F811
    first, second = clusters("ab", [quiet(), quiet(asleep_from=2, asleep_s=30.0)], absent_after=5)
    train_clusters([first, second], 0)
    assert first.late_steps.keys() == second.late_steps.keys()
    assert not any(first.late_steps.values())
    recipe = first.recipe.outer
    assert recipe is not None
    assert {step: late for step, late in second.late_steps.items() if late} == {2: recipe.every}
