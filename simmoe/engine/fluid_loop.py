"""The event loop of fluid work: plain indexing only, so that numba compiles it and Python can run it on lists.

Each stream runs at most one task, so whatever is in progress is known by its stream. The times at which streams change
stand in a heap; links know the streams that flow over them. When flows start or end, only the rates of those that are
joined to them by links, directly or through others, are found anew.
"""

from typing import Any, NamedTuple

import numpy as np

# Times that differ by less than this part of them are the same: what rounding leaves of a task must not wait until the
# links are free again.
INSTANT = 1e-12
IDLE, DELAY, LATENCY, FLOW = 0, 1, 2, 3  # what a stream does
READY, HEAP, DONE, FLOWS, LINKS = 0, 1, 2, 3, 4  # places in `State.count`


class Work(NamedTuple):
    """What does not change: columns of the graph and of its fluid work, and the sizes of the tables."""

    duration: Any
    predecessor_start: Any
    predecessor: Any
    following: Any
    latency: Any
    volume: Any
    route: Any
    bound: Any
    priority: Any
    use_start: Any
    use_link: Any
    use: Any
    hold_start: Any
    hold_link: Any
    hold: Any
    capacity: Any
    sizes: Any


class State(NamedTuple):
    """What changes; a number of its own stands in an array too, so that functions can change it.

    By task: `start`, `end` (-1 = not yet), `parked` (the first stream that waits for it). By stream: `head` (task),
    `behind` (the next stream parked at the same task), `ready` (a stack), `phase`, `left`, `rate`, `since`, `fresh`
    (the next rate), `joined` (whether its rate is being found), `key` (when it changes), `place` (in the heap).
    `heap`, `flows` and `links` are lists of streams, streams and links. By link: `held`, `free`, `level`, `reached`.
    By priority and link: `load`, `first` (of a linked list of flows: nodes stream * width + position in the route),
    `dirty` (links whose sharing has changed, their numbers in `dirt`) and `marked`.
    """

    start: Any
    end: Any
    parked: Any
    head: Any
    behind: Any
    ready: Any
    phase: Any
    left: Any
    rate: Any
    since: Any
    fresh: Any
    joined: Any
    key: Any
    place: Any
    heap: Any
    flows: Any
    links: Any
    held: Any
    free: Any
    level: Any
    reached: Any
    load: Any
    first: Any
    dirty: Any
    marked: Any
    dirt: Any
    after: Any
    before: Any
    count: Any


def run(work: Work, state: State) -> int:
    """Run until nothing more can happen; the number of tasks that have ended."""
    count, key, heap = state.count, state.key, state.heap
    now = 0.0
    while True:
        while count[READY] > 0:
            count[READY] -= 1
            begin(work, state, state.ready[count[READY]], now)
        if count[HEAP] > 0 and key[heap[0]] <= now:
            proceed(work, state, heap[0], now)
            continue
        for priority in range(work.sizes[0]):
            settle(work, state, priority, now)
        if count[HEAP] == 0 or key[heap[0]] == np.inf:
            return int(count[DONE])
        now = key[heap[0]]


def begin(work: Work, state: State, stream: int, now: float) -> None:
    """Start the next task of a stream, or park the stream behind what that waits for."""
    task = state.head[stream]
    if task < 0:
        return
    for edge in range(work.predecessor_start[task], work.predecessor_start[task + 1]):
        other = work.predecessor[edge]
        if state.end[other] < 0.0:
            state.behind[stream] = state.parked[other]
            state.parked[other] = stream
            return
    state.start[task] = now
    route = work.route[task]
    if route < 0:
        state.phase[stream] = DELAY
        put(state, stream, now + work.duration[task])
        return
    for place in range(work.hold_start[route], work.hold_start[route + 1]):
        occupy(work, state, work.hold_link[place], work.hold[place])
    state.phase[stream] = LATENCY
    put(state, stream, now + work.latency[task])


def proceed(work: Work, state: State, stream: int, now: float) -> None:
    """What happens when the time of a stream has come: its task begins to flow, or ends and frees its successors."""
    task = state.head[stream]
    route = work.route[task]
    if state.phase[stream] == LATENCY and work.volume[task] > 0.0:
        flow(work, state, stream, now)
        return
    if state.phase[stream] == FLOW:
        ebb(work, state, stream)
    if route >= 0:
        for place in range(work.hold_start[route], work.hold_start[route + 1]):
            occupy(work, state, work.hold_link[place], -work.hold[place])
    state.phase[stream] = IDLE
    drop(state, stream)
    state.end[task] = now
    count, ready = state.count, state.ready
    count[DONE] += 1
    state.head[stream] = work.following[task]
    woken = state.parked[task]
    while woken >= 0:
        ready[count[READY]] = woken
        count[READY] += 1
        woken = state.behind[woken]
    ready[count[READY]] = stream
    count[READY] += 1


def occupy(work: Work, state: State, link: int, amount: float) -> None:
    """Take some of a link from all priorities, or give it back."""
    state.held[link] += amount
    for priority in range(work.sizes[0]):
        if state.first[priority * work.sizes[1] + link] >= 0:
            soil(work, state, priority, link)


def soil(work: Work, state: State, priority: int, link: int) -> None:
    """Note that a link is shared anew from this instant."""
    links = work.sizes[1]
    base = priority * links
    if state.marked[base + link] == 0:
        state.marked[base + link] = 1
        state.dirty[base + state.dirt[priority]] = link
        state.dirt[priority] += 1


def flow(work: Work, state: State, stream: int, now: float) -> None:
    """Join the flows of the links on the route."""
    task = state.head[stream]
    route = work.route[task]
    first, priority = work.use_start[route], work.priority[route]
    state.phase[stream] = FLOW
    state.left[stream], state.since[stream], state.rate[stream] = work.volume[task], now, 0.0
    put(state, stream, np.inf)
    if first == work.use_start[route + 1]:
        put(state, stream, now + work.volume[task] / work.bound[route])
    for place in range(first, work.use_start[route + 1]):
        link, node = work.use_link[place], stream * work.sizes[2] + place - first
        list_ = priority * work.sizes[1] + link
        other = state.first[list_]
        state.after[node], state.before[node], state.first[list_] = other, -1, node
        if other >= 0:
            state.before[other] = node
        soil(work, state, priority, link)


def ebb(work: Work, state: State, stream: int) -> None:
    """Leave the flows of the links on the route."""
    route = work.route[state.head[stream]]
    first, priority = work.use_start[route], work.priority[route]
    for place in range(first, work.use_start[route + 1]):
        link, node = work.use_link[place], stream * work.sizes[2] + place - first
        after, before = state.after[node], state.before[node]
        if before >= 0:
            state.after[before] = after
        else:
            state.first[priority * work.sizes[1] + link] = after
        if after >= 0:
            state.before[after] = before
        soil(work, state, priority, link)


def settle(work: Work, state: State, priority: int, now: float) -> None:
    """Give new rates to the flows of one priority that links join to what has changed."""
    if state.dirt[priority] == 0:
        return
    gather(work, state, priority)
    fill(work, state, priority)
    count = state.count
    for position in range(count[FLOWS]):
        stream = state.flows[position]
        state.joined[stream] = 0
        rate, fresh = state.rate[stream], state.fresh[stream]
        if fresh != rate:
            left = state.left[stream] - rate * (now - state.since[stream])
            state.left[stream], state.since[stream], state.rate[stream] = left, now, fresh
            if left <= rate * now * INSTANT:
                put(state, stream, now)
            else:
                put(state, stream, now + left / fresh if fresh > 0.0 else np.inf)
    weigh(work, state, priority)


def gather(work: Work, state: State, priority: int) -> None:
    """Collect the changed links, the flows over them, their other links, and so on."""
    count, base, width = state.count, priority * work.sizes[1], work.sizes[2]
    count[FLOWS], count[LINKS] = 0, state.dirt[priority]
    for position in range(count[LINKS]):
        state.links[position] = state.dirty[base + position]
    done = 0
    while done < count[LINKS]:
        node = state.first[base + state.links[done]]
        done += 1
        while node >= 0:
            stream = node // width
            node = state.after[node]
            if state.joined[stream] == 0:
                state.joined[stream] = 1
                state.flows[count[FLOWS]] = stream
                count[FLOWS] += 1
                route = work.route[state.head[stream]]
                for place in range(work.use_start[route], work.use_start[route + 1]):
                    link = work.use_link[place]
                    if state.marked[base + link] == 0:
                        state.marked[base + link] = 1
                        state.links[count[LINKS]] = link
                        count[LINKS] += 1


def fill(work: Work, state: State, priority: int) -> None:
    """Progressive filling as in `simmoe.engine.fairshare.max_min`, of what has been gathered."""
    count, links, free = state.count, work.sizes[1], state.free
    for position in range(count[LINKS]):
        link = state.links[position]
        room = work.capacity[link] - state.held[link]
        for other in range(priority):
            room -= state.load[other * links + link]
        free[link] = max(0.0, room)
    rising = count[FLOWS]
    while rising > 0:
        lowest = rise(work, state, rising)
        bounded = 0
        for position in range(rising):
            bounded += work.bound[work.route[state.head[state.flows[position]]]] <= lowest
        position = 0
        while position < rising:
            stream = state.flows[position]
            route = work.route[state.head[stream]]
            bound = work.bound[route]
            if not (bound <= lowest if bounded > 0 else is_tight(work, state, route, lowest)):
                position += 1
                continue
            state.fresh[stream] = rate = min(lowest, bound)
            for place in range(work.use_start[route], work.use_start[route + 1]):
                link = work.use_link[place]
                free[link] = max(0.0, free[link] - rate * work.use[place])
            rising -= 1
            state.flows[position], state.flows[rising] = state.flows[rising], stream


def rise(work: Work, state: State, rising: int) -> float:
    """The rate at which the first of the gathered links is full, if its flows that have no rate yet share it."""
    level, reached = state.level, state.reached
    for position in range(state.count[LINKS]):
        level[state.links[position]] = 0.0
    for position in range(rising):
        route = work.route[state.head[state.flows[position]]]
        for place in range(work.use_start[route], work.use_start[route + 1]):
            level[work.use_link[place]] += work.use[place]
    lowest = np.inf
    for position in range(state.count[LINKS]):
        link = state.links[position]
        reached[link] = state.free[link] / level[link] if level[link] > 0.0 else np.inf
        lowest = min(lowest, reached[link])
    return float(lowest)


def is_tight(work: Work, state: State, route: int, lowest: float) -> bool:
    """Whether a route crosses a link that is full at this rate."""
    for place in range(work.use_start[route], work.use_start[route + 1]):
        if state.reached[work.use_link[place]] <= lowest:
            return True
    return False


def weigh(work: Work, state: State, priority: int) -> None:
    """Add up what the gathered links carry; later priorities have to share anew where that has changed."""
    count, links, base = state.count, work.sizes[1], priority * work.sizes[1]
    for position in range(count[LINKS]):
        state.level[state.links[position]] = 0.0
    for position in range(count[FLOWS]):
        stream = state.flows[position]
        route = work.route[state.head[stream]]
        for place in range(work.use_start[route], work.use_start[route + 1]):
            state.level[work.use_link[place]] += state.rate[stream] * work.use[place]
    for position in range(count[LINKS]):
        link = state.links[position]
        state.marked[base + link] = 0
        if state.level[link] != state.load[base + link]:
            state.load[base + link] = state.level[link]
            for later in range(priority + 1, work.sizes[0]):
                if state.first[later * links + link] >= 0:
                    soil(work, state, later, link)
    state.dirt[priority] = 0


def put(state: State, stream: int, time: float) -> None:
    """Set the time at which a stream changes."""
    count, heap, place = state.count, state.heap, state.place
    state.key[stream] = time
    if place[stream] < 0:
        place[stream] = count[HEAP]
        heap[count[HEAP]] = stream
        count[HEAP] += 1
    sift(state, place[stream])


def drop(state: State, stream: int) -> None:
    """Take a stream out of the heap."""
    count, heap, place = state.count, state.heap, state.place
    hole = place[stream]
    place[stream] = -1
    count[HEAP] -= 1
    last = heap[count[HEAP]]
    if last != stream:
        heap[hole], place[last] = last, hole
        sift(state, hole)


def sift(state: State, hole: int) -> None:
    """Move one stream of the heap up or down to where it belongs: by time, then by task."""
    heap, place = state.heap, state.place
    stream = heap[hole]
    while hole > 0 and sooner(state, stream, heap[(hole - 1) // 2]):
        above = (hole - 1) // 2
        heap[hole] = heap[above]
        place[heap[hole]] = hole
        hole = above
    while True:
        below = 2 * hole + 1
        if below >= state.count[HEAP]:
            break
        if below + 1 < state.count[HEAP] and sooner(state, heap[below + 1], heap[below]):
            below += 1
        if not sooner(state, heap[below], stream):
            break
        heap[hole] = heap[below]
        place[heap[hole]] = hole
        hole = below
    heap[hole], place[stream] = stream, hole


def sooner(state: State, one: int, other: int) -> bool:
    """Whether a stream changes before another; of two at once, that with the lower task."""
    if state.key[one] != state.key[other]:
        return bool(state.key[one] < state.key[other])
    return bool(state.head[one] < state.head[other])
