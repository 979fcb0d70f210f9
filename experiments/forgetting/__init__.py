"""How far a posterior is from retrained after a site left, and what ``forget`` says of it."""
