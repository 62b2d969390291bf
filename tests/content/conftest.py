import pytest

from kb.catalogue import catalogue
from kb.paths import DOCS
from kb.site import load_site


@pytest.fixture(scope="session")
def site():
    return load_site(DOCS, catalogue())
