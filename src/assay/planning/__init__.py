"""Planning of a program: schedule, risk simulation and forecast, from its activities, people, capacity,
budget and gates."""
