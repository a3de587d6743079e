"""The application's own tables."""

from __future__ import annotations

import datetime as dt

from sqlalchemy import DateTime, ForeignKey, Text, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customer"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    email: Mapped[str] = mapped_column(Text, unique=True)


class Greeting(Base):
    __tablename__ = "greeting"

    customer_id: Mapped[int] = mapped_column(ForeignKey("customer.id"), primary_key=True)
    greeted_at: Mapped[dt.datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
