"""Generates ratings for the matrix factorization of the examples. The ratings are drawn from a
seed, so they contain no real people and are free for any use.

A rating is the sum of 3.5 stars, a bias of its user, a bias of its movie, the product of two
vectors of four numbers, and noise, rounded to half stars. The example's model learns this
structure. Some users rate often and some movies are rated often, as in real data.

The bytes are the same on every machine, because only integers and the four basic operations on
doubles are used, and the generator is Python's Mersenne Twister.
"""
import bisect
import random

USERS, MOVIES, FACTORS, SEED = 610, 3000, 4, 20


def _normal(draw):
    """Returns approximately a standard normal number. No function of the C library is used, because
    the last bit of its result may differ between machines."""
    return sum(draw.random() for _ in range(12)) - 6


def rows():
    """Yields the lines of the CSV file, header first."""
    draw = random.Random(SEED)

    def vectors(count):
        return [
            (0.4 * _normal(draw), [0.55 * _normal(draw) for _ in range(FACTORS)])
            for _ in range(count)
        ]

    users, movies = vectors(USERS), vectors(MOVIES)
    weights, total = [], 0.0
    for rank in range(MOVIES):
        total += 1 / (rank + 60)
        weights.append(total)
    yield "userId,movieId,rating\n"
    for user, (user_bias, tastes) in enumerate(users, 1):
        seen = set()
        wanted = 20 + int(435 * draw.random() ** 2)
        while len(seen) < wanted:
            movie = bisect.bisect(weights, draw.random() * total)
            if movie in seen or movie >= MOVIES:
                continue
            seen.add(movie)
            movie_bias, traits = movies[movie]
            stars = (
                3.5
                + user_bias
                + movie_bias
                + sum(a * b for a, b in zip(tastes, traits))
                + 0.5 * _normal(draw)
            )
            yield "%d,%d,%.1f\n" % (user, movie + 1, min(max(round(2 * stars) / 2, 0.5), 5.0))
