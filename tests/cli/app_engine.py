"""An application that configures a database of its own, for the test that gives its worker another one."""

from leasequeue import LeaseQueue

lq = LeaseQueue()
lq.configure(url="postgresql://nobody@127.0.0.1:1/of_the_application")


@lq.task(name="noop")
def noop() -> None: ...
