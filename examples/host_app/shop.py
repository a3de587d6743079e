"""The application: a customer and the job that greets them are written in one transaction, or not at all."""

from __future__ import annotations

import os

from models import Customer, Greeting
from sqlalchemy import create_engine, insert, make_url
from sqlalchemy.orm import Session

from leasequeue import LeaseQueue, current_job

lq = LeaseQueue()


@lq.task()
def greet(customer_id: int) -> None:
    with lq.begin() as conn:
        conn.execute(insert(Greeting).values(customer_id=customer_id))
        current_job().complete(conn)  # the greeting and the end of the job commit together: never twice


def sign_up(name: str, email: str) -> int:
    engine = create_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg"))
    with Session(engine) as session, session.begin():
        customer = Customer(name=name, email=email)
        session.add(customer)
        session.flush()
        greet.enqueue(session, customer.id)
        return customer.id
