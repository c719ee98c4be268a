"""Fixtures of the simulations."""

import pytest

from sample_project import SampleProjects, session_folder


@pytest.fixture(scope="session")
def sample_projects(tmp_path_factory: pytest.TempPathFactory) -> SampleProjects:
    """A project with runs, to be copied."""
    return SampleProjects(session_folder(tmp_path_factory))
