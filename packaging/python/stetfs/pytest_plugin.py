"""The fixture ``stetfs_crash`` for pytest."""

import pytest

import stetfs


@pytest.fixture
def stetfs_crash():
    """A function like ``stetfs.crash`` that fails the test with what was found."""

    def judge(program, check=None, *options, read=None):
        __tracebackhide__ = True
        report = stetfs.crash(program, check, *options, read=read)
        if report["fails"]:
            pytest.fail(report["text"], pytrace=False)
        return report

    return judge
